"""The lab: optimizers compared on real tasks, from one command. Comes with ``pip install "acmo[lab]"``."""
