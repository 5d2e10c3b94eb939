"""Read what a page of the documentation promises."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / 'README.md',
    *sorted((ROOT / 'docs').rglob('*.md')),
    *sorted((ROOT / 'configs').rglob('*.md')),
]
FENCE = re.compile(r'^```(\w*)\n(.*?)^```$', re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, its text and the line it starts at."""

    language: str
    text: str
    line: int


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding='utf-8')
    return [
        Block(match[1], match[2], text[: match.start(2)].count('\n') + 1)
        for match in FENCE.finditer(text)
    ]


def read_prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub('', page.read_text(encoding='utf-8'))


def read_commands(page: Path) -> list[list[str]]:
    """Words of every command: of bash blocks and of inline code."""
    lines = []
    for block in read_blocks(page):
        if block.language == 'bash':
            lines += block.text.replace('\\\n', ' ').splitlines()
    lines += re.findall(r'`([^`]+)`', read_prose(page))
    return [words for line in lines if (words := line.split())]


def files_of_the_page(page: Path) -> dict[str, Block]:
    """Python files that the page tells the reader to write."""
    return {
        match[1]: block
        for block in read_blocks(page)
        if block.language == 'python'
        and (match := re.match(r'# ([\w/-]+\.py)\n', block.text))
    }
