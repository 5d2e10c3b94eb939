"""Files that are never half written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_when_done(path: str | Path) -> Iterator[Path]:
    """Write a file under a temporary name, and rename it once complete.

    Whatever goes wrong inside the block, or ends the process, leaves an older
    file at ``path`` as it was.

    Args:
        path (str or Path): The file to write; folders are made.

    Yields:
        Path: Name to write to, in the same folder and with the same suffix.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.stem}.{os.getpid()}.tmp{path.suffix}')
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
