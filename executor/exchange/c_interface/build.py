"""Build the C library: `python -m executor.exchange.c_interface.build FOLDER` leaves it there, with its header.

The library runs the Python that has built it, with the packages that this one finds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from strategy.base.errors import EnvironmentLacks

_HERE = Path(__file__).parent
LIBRARY = "libexchange.so"


def build_library(folder: Path) -> Path:
    """Compile the library into a folder.

    Raises:
        EnvironmentLacks: there is no compiler, no header of Python, or no shared library of it.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    headers = Path(sysconfig.get_paths()["include"])
    libraries, version = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDVERSION")
    if compiler is None:
        raise EnvironmentLacks("a C compiler: neither gcc nor cc is on PATH; install gcc")
    if not (headers / "Python.h").exists():
        raise EnvironmentLacks(f"{headers / 'Python.h'} is not there; install the development files of this Python")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        raise EnvironmentLacks("this Python was built without a shared library, which a C program would load")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_HERE / "exchange.h", folder)
    command = [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", f'-DPYTHON="{sys.executable}"', f"-I{headers}"]
    command += [str(_HERE / "exchange.c"), "-o", str(folder / LIBRARY)]
    command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", f"-lpython{version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentLacks(f"the compiler does not build the library\n{done.stderr}")
    return folder / LIBRARY


def main() -> None:
    """Build it where the first argument says."""
    print(build_library(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
