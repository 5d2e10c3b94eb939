"""Annotation files as they are found in the wild."""

import numpy as np
import pytest

from mmssm.datasets import CHOLEC80_PHASES
from mmssm.datasets.annotations import read_phase_file

NAMES = ['Preparation', 'GallbladderPackaging', 'GallbladderRetraction']
IDS = [0, 4, 6]


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / 'video01-phase.txt'
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def rows(labels=NAMES, separator='\t', newline='\n', header=True, step=1):
    lines = ['Frame\tPhase'] if header else []
    lines += [f'{step * i}{separator}{p}' for i, p in enumerate(labels)]
    return newline.join(lines) + newline


@pytest.mark.parametrize(
    'text',
    [
        rows(),
        rows(header=False),
        rows(separator='   '),
        rows(newline='\r\n'),
        '\ufeff' + rows(),
        '\ufeff' + rows(header=False, newline='\r\n'),
        rows() + '\n \t \n',
        rows().rstrip('\n'),
        rows(IDS),
        rows(IDS, header=False),
    ],
    ids=[
        'released',
        'no-header',
        'spaces',
        'crlf',
        'bom',
        'bom-no-header-crlf',
        'trailing-blank',
        'no-last-newline',
        'integers',
        'integers-no-header',
    ],
)
def test_accepted_forms(write, text):
    phases = read_phase_file(write(text), CHOLEC80_PHASES)
    assert phases.dtype == np.int64
    assert phases.tolist() == IDS


def test_names_are_mapped_by_name_not_by_position(write):
    # one release of the data numbers the last three phases otherwise
    path = write(rows(['GallbladderRetraction', 'CleaningCoagulation']))
    assert read_phase_file(path, CHOLEC80_PHASES).tolist() == [6, 5]


@pytest.mark.parametrize('count', [1, 4, 5, 6, 10, 11])
def test_stride_keeps_every_nth_frame(write, count):
    labels = [i % 7 for i in range(count)]
    phases = read_phase_file(write(rows(labels)), CHOLEC80_PHASES, stride=5)
    assert phases.tolist() == labels[::5]


def test_rows_already_at_the_frame_rate(write):
    # one row per second that keeps the numbers of the 25-fps frames
    path = write(rows(IDS, step=25, header=False))
    assert read_phase_file(path, CHOLEC80_PHASES, 25).tolist() == IDS
    with pytest.raises(ValueError, match='annotation_fps'):
        read_phase_file(path, CHOLEC80_PHASES, 10)


@pytest.mark.parametrize(
    ('text', 'line', 'remedy'),
    [
        (rows([*NAMES, 'Prepration']), 5, 'accepted names: Preparation'),
        (rows(['TrocarPlacement'], header=False), 1, 'accepted names'),
        (rows([0, 1, 7]), 4, 'expected 0 to 6'),
        (rows([0, 'Preparation']), 2, 'accepted names'),
        ('0\t0\n1\t0\n3\t0\n', 3, 'expected 2'),
        ('0\t0\n1\t0\n1\t0\n', 3, 'expected 2'),
        ('0\t0\n0\t0\n', 2, 'surplus'),
        ('1\t0\n2\t0\n', 1, 'expected 0'),
        ('Frame\tPhase\n0\n', 2, '1 column'),
        ('Frame\tPhase\n0\t0\n\n1\t0\n', 3, '0 column'),
        ('Frame\tPhase\n0\t0\n1.5\t0\n', 3, 'whole number'),
        ('name\tvalue\n0\t0\n', 1, 'header'),
        ('\n0\t0\n', 1, 'blank'),
    ],
)
def test_errors_name_file_and_line(write, text, line, remedy):
    with pytest.raises(ValueError, match='video01-phase.txt') as error:
        read_phase_file(write(text), CHOLEC80_PHASES)
    assert f'line {line}:' in str(error.value)
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    'text', ['', 'Frame\tPhase\n', '\n\n'], ids=['empty', 'header', 'blank']
)
def test_file_without_rows(write, text):
    with pytest.raises(ValueError, match='no annotation rows'):
        read_phase_file(write(text), CHOLEC80_PHASES)


def test_not_text(write):
    with pytest.raises(ValueError, match='UTF-8'):
        read_phase_file(write(b'\xff\xfe\x00\x81'), CHOLEC80_PHASES)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match='data_root'):
        read_phase_file(tmp_path / 'video99-phase.txt', CHOLEC80_PHASES)
