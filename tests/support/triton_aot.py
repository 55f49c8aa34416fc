"""Compile the Triton kernels for a GPU that is not here, and read registers, spills and instructions.

Run in a process of its own, without ``TRITON_INTERPRET``: ``python -m tests.support.triton_aot sm_90 update_chunks``
prints one line of JSON per variant.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TARGETS = {
    "sm_75": ("cuda", 75, 32),
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
}


def compile_variant(variant: Any, target: str) -> dict[str, Any]:
    """Compile one variant of a kernel; return what is known of it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, arguments, constants, warps = variant.kernel, variant.arguments, variant.constants, variant.warps
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else arguments[name] for name in names}
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if str(signature[name]).startswith("*")
    }
    source = ASTSource(
        kernel, signature, constexprs={(names.index(k),): v for k, v in constants.items()}, attrs=attributes
    )
    compiled = triton.compile(source, target=GPUTarget(*TARGETS[target]), options={"num_warps": warps})
    found = {"kernel": variant.name, "target": target}
    if "cubin" in compiled.asm:
        return found | read_cubin(compiled.asm["cubin"]) | read_ptx(compiled.asm["ptx"])
    return found | read_amdgcn(compiled.asm["amdgcn"])


def read_cubin(cubin: bytes) -> dict[str, int]:
    """Return registers and spilled bytes, as the bundled cuobjdump prints them."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers = re.search(r"REG:(\d+)", text)
    stack = re.search(r"STACK:(\d+)", text)
    assert registers, text
    assert stack, text
    return {"registers": int(registers[1]), "spilled": int(stack[1])}


def read_ptx(ptx: str) -> dict[str, int]:
    """Count loads and stores of global memory: those of 16 bytes, and all."""
    lines = [line for line in ptx.splitlines() if re.search(r"\b(ld|st)\.global", line)]
    wide = [line for line in lines if re.search(r"\.v4\.b32|\.v2\.b64|\.v4\.f32|\.v2\.f64", line)]
    return {
        "loads_16": sum("ld." in line for line in wide),
        "stores_16": sum("st." in line for line in wide),
        "memory_instructions": len(lines),
    }


def read_amdgcn(text: str) -> dict[str, int]:
    """Return registers, spills and wide loads and stores of an AMD kernel."""
    registers = re.search(r"\.vgpr_count:\s+(\d+)", text)
    spilled = re.search(r"\.vgpr_spill_count:\s+(\d+)", text)
    assert registers
    assert spilled
    return {
        "registers": int(registers[1]),
        "spilled": int(spilled[1]),
        "loads_16": len(re.findall(r"(?:global|buffer|flat)_load_dwordx4", text)),
        "stores_16": len(re.findall(r"(?:global|buffer|flat)_store_dwordx4", text)),
    }


def main(targets: list[str], patterns: list[str]) -> None:
    """Print one line of JSON per variant whose name has one of the patterns."""
    from acmo.backends.triton.variants import list_variants

    for target in targets:
        for variant in list_variants():
            if not patterns or any(pattern in variant.name for pattern in patterns):
                print(json.dumps(compile_variant(variant, target)), flush=True)


if __name__ == "__main__":
    main([x for x in sys.argv[1:] if x in TARGETS], [x for x in sys.argv[1:] if x not in TARGETS])
