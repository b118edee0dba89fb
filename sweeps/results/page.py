"""Make the page of a campaign from its packed files: see README.md.

    python sweeps/results/page.py PACKED [--to DIRECTORY]

writes README.md and its figures, and copies the packed files beside them; by default into a folder here that is named
after the device.
"""

import argparse
import shutil
import sys
from pathlib import Path

from campaign.packing import FILES
from campaign.page import device_of, page
from campaign.results import Results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", type=Path, metavar="PACKED", help="directory with the packed files")
    parser.add_argument("--to", type=Path, metavar="DIRECTORY", help="where the page goes")
    arguments = parser.parse_args()
    try:
        results = Results.load(arguments.packed)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    to: Path = arguments.to or Path(__file__).parent / device_of(results)
    to.mkdir(parents=True, exist_ok=True)
    text, figures = page(results)
    for name, svg in figures.items():
        (to / name).write_text(svg, encoding="utf-8")
    for name in FILES:
        if (arguments.packed / name).is_file() and arguments.packed.resolve() != to.resolve():
            shutil.copyfile(arguments.packed / name, to / name)
    (to / "README.md").write_text(text, encoding="utf-8")
    print(to / "README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
