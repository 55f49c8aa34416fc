// Wide tables and code: a cue that they scroll, and a way to scroll them with the keys.
function markWide() {
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .formula")) {
    const wide = part.scrollWidth > part.clientWidth + 1;
    part.classList.toggle("wide", wide);
    if (wide) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}

// Without a font for mathematics (Android, many Linux systems) browsers do not lower subscripts: site.css then does.
function markMathFont() {
  const probe = document.createElement("div");
  const math = (inside) => `<math style="font-size: 100px">${inside}</math>`;
  probe.style.cssText = "position: absolute; visibility: hidden";
  probe.innerHTML = math("<msub><mi>m</mi><mi>x</mi></msub>");
  document.body.append(probe);
  const [base, sub] = [...probe.querySelectorAll("mi")].map((part) => part.getBoundingClientRect().bottom);
  document.documentElement.classList.toggle("no-math-font", sub <= base);
  probe.remove();
}

// Names that the theme leaves out.
function nameLandmarks() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-nav .md-nav[aria-labelledby]").forEach((part) => {
    part.setAttribute("aria-label", `Pages: ${part.querySelector(".md-nav__title").textContent.trim()}`);
    part.removeAttribute("aria-labelledby");
  });
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((part) => {
    part.setAttribute("aria-label", `Code ${part.parentElement.id.replace(/\D+/g, "")}`);
  });
}

function refresh() {
  nameLandmarks();
  markWide();
}

addEventListener("DOMContentLoaded", () => {
  markMathFont();
  refresh();
  new MutationObserver(refresh).observe(document.body, { childList: true, subtree: true }); // the theme wraps tables later
});
addEventListener("resize", markWide);
