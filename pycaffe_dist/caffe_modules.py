"""Caffe's names: programs that are commands here, and modules that are pcaffe's modules.

This file has only names: a module is imported when a program imports its name.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pycaffe_dist.errors import UsageError

# pycaffe's modules, and the modules with their contents.
_MODULES = {
    "caffe._caffe": "pycaffe_dist.pycaffe",
    "caffe.classifier": "pycaffe_dist.classifier",
    "caffe.coord_map": "pycaffe_dist.coord_map",
    "caffe.detector": "pycaffe_dist.detector",
    "caffe.draw": "pycaffe_dist.draw",
    "caffe.io": "pycaffe_dist.io",
    "caffe.net_spec": "pycaffe_dist.net_spec",
    "caffe.proto": "pycaffe_dist.proto",
    "caffe.proto.caffe_pb2": "pycaffe_dist.schema.caffe_pb2",
    "caffe.pycaffe": "pycaffe_dist.pycaffe",
}
# Names that mean something else in pycaffe_dist.
_OWN_HOMES = {"layers": "pycaffe_dist.net_spec", "log": "pycaffe_dist.pycaffe"}
# The version of Caffe with the same behaviour.
_VERSION = "1.0.0"

# Programs of Caffe and SSD's fork; a link to pcaffe with such a name runs this command.
TOOLS = (
    *("caffe", "compute_image_mean", "convert_annoset", "convert_cifar_data", "convert_imageset"),
    *("convert_mnist_data", "convert_mnist_siamese_data", "create_label_map", "device_query"),
    *("extract_features", "get_image_size", "upgrade_net_proto_binary", "upgrade_net_proto_text"),
    "upgrade_solver_proto_text",
)
_MARK = '"""pcaffe as the module caffe; made by `pcaffe install-names`."""'
# The file of a module caffe that is pcaffe.
MODULE = f"""{_MARK}

from pycaffe_dist import caffe_modules

caffe_modules.install(force=True)
"""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``caffe`` and its modules; each is the same object as the module of pycaffe_dist."""

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for pycaffe's modules only."""
        if fullname == "caffe" or fullname in _MODULES:
            is_package = fullname in ("caffe", "caffe.proto")
            return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the facade for ``caffe`` itself; the other modules come with exec_module."""
        return _Caffe("caffe") if spec.name == "caffe" else ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of pycaffe_dist in the place of the empty one."""
        if module.__name__ in _MODULES:
            sys.modules[module.__name__] = importlib.import_module(_MODULES[module.__name__])


class _Caffe(ModuleType):
    """The module ``caffe``: pycaffe_dist's API, looked up when first used."""

    __version__ = _VERSION

    def __getattr__(self, name: str) -> Any:
        import pycaffe_dist

        if name.startswith("__"):
            raise AttributeError(f"module 'caffe' has no attribute '{name}'")
        if f"caffe.{name}" in _MODULES:
            return importlib.import_module(f"caffe.{name}")
        home = _OWN_HOMES.get(name)
        value = getattr(importlib.import_module(home) if home else pycaffe_dist, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        import pycaffe_dist

        return sorted({*super().__dir__(), *pycaffe_dist.__all__})


def install(force: bool = False) -> None:
    """Let ``import caffe`` give pcaffe in this process.

    If a Caffe is installed or already imported, this raises UsageError unless ``force`` is set.
    """
    loaded = sys.modules.get("caffe")
    if isinstance(loaded, _Caffe):
        return
    if not force:
        place = getattr(loaded, "__file__", None) if loaded else installed()
        if loaded or place:
            raise UsageError(
                f"there is a Caffe already: {place or loaded}; install_as_caffe(force=True), or "
                "as_caffe --force, hides it from this program"
            )
    for name in [name for name in sys.modules if name.split(".")[0] == "caffe"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder())
    importlib.import_module("caffe")


def installed() -> str | None:
    """Return the path of an installed Caffe that is not pcaffe.

    A folder of this name alone does not count.
    """
    try:
        spec = importlib.util.find_spec("caffe")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.loader is None or (spec.origin and is_ours(Path(spec.origin))):
        return None
    return spec.origin


def is_ours(path: Path) -> bool:
    """Tell whether a file is the module of `pcaffe install-names`."""
    try:
        return path.read_text(errors="replace").startswith(_MARK)
    except OSError:
        return False
