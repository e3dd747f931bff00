"""Models: folders with a net, its readme and its weights, here or as they came with pcaffe."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pycaffe_dist
from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.schema.reading import read_lines
from pycaffe_dist.table import aligned

_PACKAGE = Path(pycaffe_dist.__file__).parent
# The folder of all models, beside the current folder's files as in the repository.
HERE = Path("models")
_FENCE = "---"
_MB = 1e6


@dataclass(frozen=True)
class Model:
    """The folder of a model."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @cached_property
    def facts(self) -> dict[str, str]:
        """The fields at the top of readme.md, as BVLC's models have them; raises UsageError."""
        file = self.folder / "readme.md"
        lines = (
            read_lines(file, lambda text: UsageError(f"{file}: {text}")) if file.exists() else []
        )
        if not lines or lines[0].strip() != _FENCE:
            return {}
        end = next((n for n, line in enumerate(lines[1:], 1) if line.strip() == _FENCE), 0)
        pairs = (line.partition(":") for line in lines[1:end])
        facts = {key.strip(): value.strip() for key, _, value in pairs if value.strip()}
        if not facts.get("size", "0").isdecimal():
            raise UsageError(f"{file}: size is the weights' bytes, not '{facts['size']}'")
        return facts

    @property
    def train_net(self) -> Path | None:
        """The net for training and tests, if there is one."""
        return self._first("train_val", "train_test", f"{self.name}_train_test")

    @property
    def deploy_net(self) -> Path | None:
        """The net without data, labels and loss, if there is one."""
        return self._first("deploy", self.name)

    def required_deploy_net(self) -> Path:
        """Return the net without data, labels and loss; raises UsageError if there is none."""
        if self.deploy_net is None:
            raise UsageError(
                f"model '{self.folder}' has no deploy.prototxt: expected a net without data and "
                "losses"
            )
        return self.deploy_net

    @property
    def labels(self) -> Path | None:
        """The names of the classes, one a line, if they are there."""
        file = self.folder / "labels.txt"
        return file if file.exists() else None

    def weights(self) -> Path | None:
        """Return the published weights, or else the newest; None without any."""
        published = self.folder / self.facts.get("caffemodel", "-")
        if published.is_file():
            return published
        files = [*self.folder.glob("*.caffemodel"), *self.folder.glob("*.caffemodel.h5")]
        return max(files, key=lambda file: file.stat().st_mtime, default=None)

    def required_weights(self) -> Path:
        """Return the weights; raises UsageError with the way to get them."""
        weights = self.weights()
        if weights is None:
            way = "train it"
            if "caffemodel_url" in self.facts:
                way = f"`pcaffe models fetch {self.name}` gets the published ones"
            raise UsageError(
                f"there are no weights in '{self.folder}': {way}, or name a file with --weights"
            )
        return weights

    def _first(self, *stems: str) -> Path | None:
        files = (self.folder / f"{stem}.prototxt" for stem in stems)
        return next((file for file in files if file.is_file()), None)


@dataclass(frozen=True)
class Listed:
    """A model: its name, folder, weights if they are there, and the facts in its readme."""

    name: str
    folder: str
    weights: str | None
    published: dict[str, str]


@dataclass(frozen=True)
class List:
    """All models."""

    models: list[Listed]

    def table(self) -> str:
        """Return a line for each model: whether its weights are here, their size, what it is."""
        rows = [("model", "weights", "published", "description")]
        for model in self.models:
            size = int(model.published.get("size", 0)) / _MB
            published = "yes" if "caffemodel_url" in model.published else "-"
            title = model.published.get("name", "")
            here = "here" if model.weights else "-"
            rows.append((model.name, here, f"{size:.0f} MB" if size else published, title))
        return aligned(rows, left=(0, 1, 3))


def listed() -> List:
    """Return the models that came with pcaffe and those in models/."""
    models = [find(name) for name in names()]
    return List(
        [
            Listed(one.name, str(one.folder), str(one.weights() or "") or None, one.facts)
            for one in models
        ]
    )


def shipped(kind: str) -> Path:
    """Return the folder of this kind ("models", "data") that came with pcaffe."""
    inside = _PACKAGE / "shipped" / kind
    return inside if inside.is_dir() else _PACKAGE.parent / kind


def names() -> list[str]:
    """Return the names of the models that came with pcaffe and of those in models/, sorted."""
    folders = [*shipped("models").glob("*"), *HERE.glob("*")]
    return sorted({folder.name for folder in folders if any(folder.glob("*.prototxt"))})


def find(name: str) -> Model:
    """Return a model by its folder or its name, first of models/; raises UsageError."""
    folders = [Path(name)]
    if "/" not in name:
        folders += [HERE / name, shipped("models") / name]
    for folder in folders:
        if any(folder.glob("*.prototxt")):
            return Model(folder)
    if Path(name).is_dir():
        raise UsageError(f"the folder '{name}' has no prototxt: expected a model's folder")
    hint = did_you_mean(name, names()) or "; `pcaffe models` lists those that there are"
    raise UsageError(f"there is no model or folder '{name}'{hint}")


def copy(name: str, target: Path) -> list[Path]:
    """Copy a model to models/ below ``target``, and to data/ the scripts that make its data.

    These are the places that its prototxts name.  Returns the new folders; raises UsageError when
    the model is there already.
    """
    source, there = shipped("models") / name, target / HERE / name
    if not source.is_dir():
        known = [path.name for path in shipped("models").glob("*")]
        raise UsageError(f"no model '{name}' came with pcaffe{did_you_mean(name, known)}")
    if there.exists():
        raise UsageError(f"'{there}' exists already; remove it first, or copy to another folder")
    ignored = shutil.ignore_patterns("*.caffemodel*", "*.solverstate*", "*.png", "*.xml", "*.tmp")
    shutil.copytree(source, there, ignore=ignored)
    made = [there]
    texts = "".join(path.read_text() for path in there.glob("*.prototxt"))
    for folder in sorted(set(re.findall(r'"data/(\w+)/', texts))):
        scripts = [*(shipped("data") / folder).glob("*.sh")]
        if scripts:
            made.append(target / "data" / folder)
            _copy_scripts(scripts, made[-1])
            _copy_scripts([shipped("data") / "common.sh"], target / "data")
    return made


def _copy_scripts(scripts: list[Path], target: Path) -> None:
    """Copy scripts that are not there yet."""
    target.mkdir(parents=True, exist_ok=True)
    for script in scripts:
        if not (target / script.name).exists():
            shutil.copy(script, target)
