"""Fetches the published weights of a model, and the names of its classes."""

from __future__ import annotations

import tarfile
from pathlib import Path

from pycaffe_dist.errors import DataError, UsageError
from pycaffe_dist.log import logger
from pycaffe_dist.zoo.download import Published, download
from pycaffe_dist.zoo.models import HERE, Model, copy, find

_CHECKSUMS = ("sha1", "sha256")


def fetch(name: str, target: Path, url: str = "") -> Model:
    """Fetch a model's weights to models/ below ``target``, and the model if it is not there.

    Another ``url`` than the published one may have the same file.  Raises UsageError for a model
    without published weights, before anything is written, and DataError.
    """
    model = find(str(target / HERE / name)) if (target / HERE / name).is_dir() else find(name)
    published = of_weights(model, url)
    if model.folder.resolve() != (target / HERE / name).resolve():
        copy(name, target)
        model = Model(target / HERE / name)
    download(published, model.folder / model.facts["caffemodel"])
    if model.facts.get("labels_url") and model.labels is None:
        try:
            _fetch_labels(model)
        except DataError as error:
            logger.warning("No names of classes, only their numbers: %s", error)
    return model


def of_weights(model: Model, url: str = "") -> Published:
    """Return what a model's readme tells about its weights; raises UsageError."""
    facts = model.facts
    missing = [key for key in ("caffemodel", "caffemodel_url") if key not in facts]
    if missing:
        raise UsageError(
            f"model '{model.name}' has no published weights: its readme.md has no {missing[0]}; "
            "train it with its solver"
        )
    kind = next((kind for kind in _CHECKSUMS if kind in facts), "")
    checksum = facts.get(kind, "")
    return Published(url or facts["caffemodel_url"], int(facts.get("size", 0)), checksum, kind)


def _fetch_labels(model: Model) -> None:
    """Fetch the archive with the names of the classes, and write them to labels.txt."""
    url, member = model.facts["labels_url"], model.facts["labels"]
    archive = model.folder / url.rpartition("/")[2]
    download(Published(url), archive)
    try:
        with tarfile.open(archive) as tar:
            found = next((info for info in tar if Path(info.name).name == member), None)
            file = tar.extractfile(found) if found is not None else None
            text = file.read() if file is not None else b""
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{url}: not an archive: {error}") from error
    finally:
        archive.unlink(missing_ok=True)
    if not text:
        raise DataError(f"{url}: the archive has no {member}")
    (model.folder / "labels.txt").write_bytes(text)
