"""What the documentation names is there: files, commands, options, names."""

import importlib
import inspect
import re
from functools import cache

import pytest
from mmengine.config import Config

from mmssm import registry
from mmssm.engine.launch import find_config
from tests.test_docs.markdown import (
    PAGES,
    ROOT,
    files_of_the_page,
    page_id,
    read_blocks,
    read_commands,
    read_prose,
)

FOLDERS = 'mmssm|configs|tools|tests|docs|kernels'
# Where kernels will go.
FUTURE = ('kernels/cpu/*.c', 'kernels/triton/*.py')
EVERY_PAGE = pytest.mark.parametrize('page', PAGES, ids=page_id)


def heading_anchor(heading):
    """GitHub's anchor of a heading."""
    words = re.sub(r'[^\w\s-]', '', heading.strip().lower())
    return words.replace(' ', '-')


@EVERY_PAGE
def test_links_lead_somewhere(page):
    links = re.findall(r'\]\(([^)]+)\)', read_prose(page))
    for link in links:
        if re.match(r'https?://', link):
            continue
        name, _, anchor = link.partition('#')
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r'^#+ (.*)$', target.read_text(), re.M)
            assert anchor in map(heading_anchor, headings), link


@EVERY_PAGE
def test_paths_exist(page):
    text = page.read_text(encoding='utf-8')
    paths = re.findall(rf'(?<![\w./:-])((?:{FOLDERS})/[\w./*<>-]*)', text)
    for path in paths:
        pattern = re.sub(r'<\w+>', '*', path.rstrip('.'))
        if pattern in FUTURE:
            continue
        assert list(ROOT.glob(pattern)), path


def tool_sources(script):
    """Source of a script and of the module that holds common options."""
    common = ROOT / 'mmssm/engine/launch.py'
    return (ROOT / script).read_text() + common.read_text()


@cache
def load_config(name):
    return Config.fromfile(find_config(name))


def check_config_option(config, option):
    """The setting exists, or the part that it is an argument of."""
    *parents, _ = option.partition('=')[0].split('.')
    part = config
    for key in parents:
        assert key in part, option
        part = part[key]


@EVERY_PAGE
def test_commands_are_real(page):
    written = files_of_the_page(page)
    makefile = (ROOT / 'Makefile').read_text()
    extras = (ROOT / 'pyproject.toml').read_text()
    for words in read_commands(page):
        command = ' '.join(words)
        if words[0] == 'make' and len(words) > 1:
            assert re.search(rf'^{words[1]}:', makefile, re.M), command
        for extra in re.findall(r"-e '\.\[([\w,]+)\]'", command):
            for name in extra.split(','):
                assert re.search(rf'^{name} = \[', extras, re.M), command
        scripts = [w for w in words if re.fullmatch(r'tools/[\w/]+\.\w+', w)]
        if not scripts or len(words) == 1:
            continue
        sources = tool_sources(scripts[0])
        if scripts[0].endswith('.sh'):
            kind = 'train' if 'train' in scripts[0] else 'test'
            sources += tool_sources(f'tools/{kind}.py')
        for flag in (w for w in words if re.fullmatch(r'--[\w-]+', w)):
            assert f"'{flag}'" in sources, command
        configs = [w for w in words if re.match(r'configs/.*\.py$|\w+::', w)]
        assert all(find_config(name) for name in configs), command
        config = load_config(configs[0]) if configs else None
        if '--cfg-options' in words and config is not None:
            for option in words[words.index('--cfg-options') + 1 :]:
                check_config_option(config, option)
        assert written.keys() >= {w for w in words if 'my_project/' in w}


@EVERY_PAGE
def test_flags_in_tables_are_real(page):
    """Tables of flags stand below the command that they belong to."""
    flags = re.findall(r'^\|[^|]*`(--[\w-]+)[^|]*\|', read_prose(page), re.M)
    scripts = {
        word
        for words in read_commands(page)
        for word in words
        if re.fullmatch(r'tools/[\w/]+\.py', word)
    }
    sources = ''.join(tool_sources(script) for script in scripts)
    for flag in flags:
        assert f"'{flag}'" in sources, flag


@EVERY_PAGE
def test_config_keys_exist(page):
    config = load_config(
        'configs/surgical_mamba/surgical-mamba_tiny_sample.py'
    )
    keys = re.findall(
        r'`((?:model|train_dataloader|test_evaluator)\.[\w.]+)`',
        read_prose(page),
    )
    for key in keys:
        check_config_option(config, key)
        assert key.rpartition('.')[2] in arguments_of(config, key), key


def arguments_of(config, key):
    """Keys and, of a registered class, arguments beside a setting."""
    part = config
    for name in key.split('.')[:-1]:
        part = part[name]
    names = set(part)
    kinds = {'TimmBackbone', part.get('type')}
    for kind in kinds - {None}:
        for known in (registry.MODELS, registry.METRICS):
            cls = known.get(kind)
            if cls is not None:
                names |= set(inspect.signature(cls).parameters)
    return names


@EVERY_PAGE
def test_names_of_the_package_exist(page):
    text = read_prose(page) + ''.join(
        block.text for block in read_blocks(page) if block.language == 'text'
    )
    for name in re.findall(r'(?<![\w/.])mmssm((?:\.\w+)+)', text):
        parts = name.strip('.').split('.')
        if parts in (['X'], ['git']):
            continue
        if len(parts) == 1 and registry.MODELS.get(f'mmssm.{parts[0]}'):
            continue
        found = importlib.import_module('mmssm')
        for part in parts:
            if not hasattr(found, part):
                importlib.import_module(f'{found.__name__}.{part}')
            found = getattr(found, part)
