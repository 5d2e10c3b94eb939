"""Sample videos shared by the tests of this folder."""

import pytest

from mmssm.testing.sample_videos import make_tiny_videos


@pytest.fixture(scope='session')
def tiny_root(tmp_path_factory):
    """Two training and two test videos of 20 to 40 frames."""
    return make_tiny_videos(tmp_path_factory.mktemp('tiny') / 'data')
