"""Builds the images of the embedded cluster without a container engine or a registry.

Prints one line for each image: its name and the OCI archive that holds it. An image is built
once for what it is made of; the archives lie in the cache folder.
"""

import argparse
import sys
from pathlib import Path

# What the machine offers is known in one place, next door.
sys.path.append(str(Path(__file__).resolve().parents[1] / "cluster"))

import bases
import buildah
import components
import host
import images
import programs
import project


def _main() -> None:
    parser = argparse.ArgumentParser(prog="hack/image", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build the images that are missing or out of date")
    build.add_argument(
        "images",
        nargs="*",
        metavar="IMAGE",
        help="base, pause, prometheus, project; all of them where none is named",
    )
    commands.add_parser("program", help="print where a Prometheus for this machine lies")
    given = parser.parse_args()
    if given.command == "program":
        print(bases.prometheus_program())
        return
    named = given.images or ["base", "pause", "prometheus", "project"]
    if unknown := set(named) - {"base", "pause", "prometheus", "project"}:
        parser.error(f"there is no image {', '.join(sorted(unknown))}")
    buildah.require()
    for name in named:
        match name:
            case "base":
                image = bases.base()
            case "prometheus":
                image = bases.prometheus()
            case "project":
                image = project.image()
            case _:
                programs.build_all()
                print(components.PAUSE_IMAGE, images.pause_archive())
                continue
        print(image.name, image.archive)


if __name__ == "__main__":
    try:
        _main()
    except host.Failure as failure:
        sys.exit(f"hack/image: {failure}")
    except KeyboardInterrupt:
        sys.exit("hack/image: interrupted")
