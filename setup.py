"""Compile the assignment kernel when the package is installed. Without a compiler it uses scipy, so nothing fails."""

import importlib.util
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOM = Path(__file__).parent / "src" / "coset" / "assignment"


def kernel():
    """The module `coset.assignment.build`, without the packages that importing coset would need."""
    spec = importlib.util.spec_from_file_location("coset_kernel_build", ROOM / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithKernel(build_py):
    """Compile into the wheel, or beside the sources in an editable install."""

    def run(self):
        super().run()
        build = kernel()
        target = ROOM if self.editable_mode else Path(self.build_lib) / "coset" / "assignment"
        try:
            build.build(target)
        except build.BuildError as error:
            sys.stderr.write(f"The assignment kernel is not built, and scipy is used instead: {error}\n")


class PlatformWheel(bdist_wheel):
    """The library is called through ctypes, so one wheel serves every Python, but only this platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithLibrary(Distribution):
    """A package that holds machine code, though no extension module."""

    def has_ext_modules(self):
        return True


setup(distclass=WithLibrary, cmdclass={"build_py": BuildWithKernel, "bdist_wheel": PlatformWheel})
