"""The native library, for the wheel (docs/install.md).

Hatchling loads this file by itself: it imports nothing of the project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "wire/target/release/libtideline_wire.so"
INSTALLED = "tideline/_data/wire/libtideline_wire.so"
CARGO = ["cargo", "build", "--quiet", "--release", "--locked", "--offline"]


class NativeLibrary(BuildHookInterface[Any]):
    """Builds it where cargo is, else takes the one that was built before."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See ``BuildHookInterface``. An editable installation finds it in the source tree."""
        if version != "standard":
            return
        if not sys.platform.startswith("linux"):
            self.app.abort(
                f"a wheel carries the native library, which is for Linux: this is {sys.platform}. "
                "Build it on Linux; an editable installation is possible anywhere"
            )
        library = Path(self.root) / LIBRARY
        if shutil.which("cargo") is not None:
            manifest = ["--manifest-path", str(Path(self.root) / "wire/Cargo.toml")]
            subprocess.run([*CARGO, *manifest], check=True)
        elif not library.is_file():
            self.app.abort(
                f"cargo was not found, and {library} was not built before: the wheel carries the "
                "native library. Install Rust 1.82 or newer"
            )
        platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"  # ctypes: any Python 3
        build_data["force_include"][str(library)] = INSTALLED
