"""``python -m acmo``: the ``acmo`` command."""

from acmo.lab.cli import main

if __name__ == "__main__":
    main()
