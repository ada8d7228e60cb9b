"""Data sets of the model hub, pinned to a commit and read as a stream: nothing but a row group is held at a time.

`wikipedia` is the English Wikipedia of 1 November 2023; `red_pajama` a sample of SlimPajama, which is RedPajama without
duplicates. Both are Parquet files, since `datasets` runs no scripts.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.errors import ModelFault, QkgeomError, TransientFault
from qkgeom.sources.hub_client import ask
from qkgeom.sources.hub_faults import fault_for, innermost, public_endpoint, require_endpoint, said
from qkgeom.training.corpora.base import Documents

if TYPE_CHECKING:
    from datasets import IterableDataset

logger = logging.getLogger(__name__)
COLUMN = "text"
ROWS = 256  # decoded at a time
PAUSES = 10.0, 60.0, 300.0  # seconds, after the minutes for which the clients themselves try again


@dataclass(frozen=True)
class DataSet:
    """A data set of the hub, by its id, and the part of it that is read."""

    repo: str
    config: str = "default"
    split: str = "train"

    @property
    def page(self) -> str:
        """The data set's page, below the hub's address."""
        return f"datasets/{self.repo}"


CORPORA = {
    "wikipedia": DataSet("wikimedia/wikipedia", "20231101.en"),
    "red_pajama": DataSet("DKYoon/SlimPajama-6B"),
}


def documents(name: str, jigsaw_zip: Path | None = None) -> Documents:
    """The texts of a data set in the order of its files.

    Raises:
        ModelFault: the hub has no such data set or refuses access; also later, if its files are not as expected.
        TransientFault: the hub cannot be reached or is out of order; also later, while texts are read.
    """
    data_set = CORPORA[name]
    commit = _commit(data_set)
    origin = {"kind": "hub", "repo": data_set.repo, "config": data_set.config, "split": data_set.split, "commit": commit}
    return Documents(_texts(data_set, commit), origin, streamed=True)


def _commit(data_set: DataSet) -> str:
    require_endpoint()
    from huggingface_hub import HfApi, constants

    def look_up(page: str) -> str | None:
        return HfApi().dataset_info(page.removeprefix("datasets/"), timeout=constants.HF_HUB_ETAG_TIMEOUT).sha

    commit = ask(look_up, data_set.page, where=data_set.page)
    if not commit:
        raise TransientFault("the hub does not say which commit this is", where=data_set.page, fix="check HF_ENDPOINT")
    return commit


def _texts(data_set: DataSet, commit: str) -> Iterator[str]:
    """The texts; a stream that breaks off is taken up again where it was, after a pause."""
    rows, pauses = None, iter(PAUSES)
    while True:
        try:
            if rows is None:
                rows = _rows(data_set, commit)
            for row in rows:
                pauses = iter(PAUSES)
                yield row[COLUMN]
            return
        except Exception as error:
            fault = _fault(error, data_set, commit)
            if fault is None:
                raise
            pause = next(pauses, None) if isinstance(fault, TransientFault) else None
            if pause is None:
                raise fault from error
            logger.warning("%s: %s; going on in %.0f seconds", data_set.page, fault.what, pause)
        time.sleep(pause)
        if rows is not None:
            rows.load_state_dict(rows.state_dict())


def _rows(data_set: DataSet, commit: str) -> IterableDataset:
    from datasets import load_dataset

    options = {"split": data_set.split, "revision": commit, "columns": [COLUMN], "batch_size": ROWS}
    with tempfile.TemporaryDirectory() as empty:  # when the hub fails, `datasets` takes another version from its cache
        return load_dataset(data_set.repo, data_set.config, streaming=True, cache_dir=empty, **options)


def _fault(error: Exception, data_set: DataSet, commit: str) -> QkgeomError | None:
    """Our error for one of `datasets`, or None for one that the hub has nothing to do with."""
    where = f"{data_set.page}@{commit}"
    while isinstance(error, ConnectionError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what broke off, under "Server Disconnected"
    error = innermost(error)
    if isinstance(error, (FileNotFoundError, KeyError, ValueError)):
        return ModelFault(
            "a data set of the hub is not what it is taken for",
            where=f"{where} at {public_endpoint()}",
            found=said(error),
            expected=f"Parquet files of {data_set.config}/{data_set.split} with a column `{COLUMN}`",
            fix=f"look at {public_endpoint()}/{data_set.page}",
        )
    return fault_for(error, data_set.page, where)
