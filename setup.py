"""Build step: ``kernels/`` as mmssm.kernels, configs and tools in .mim.

``mim`` and mmengine look for configs, tools and ``model-index.yml`` in
``mmssm/.mim``. An editable install gets links there, so that edits are seen;
a wheel gets copies, which are made in the build directory and never in the
source tree.
"""

import os
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
MIM = Path('mmssm', '.mim')
MIM_SOURCES = ('configs', 'tools', 'model-index.yml')
IGNORED = shutil.ignore_patterns('__pycache__', '*.py[cod]')


class BuildWithMim(build_py):
    """``build_py`` that also fills ``mmssm/.mim``."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            self._link()
        else:
            self._copy()

    def _link(self) -> None:
        target = ROOT / MIM
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in MIM_SOURCES:
            source = os.path.relpath(ROOT / name, target)
            try:
                (target / name).symlink_to(source)
            except OSError as error:
                # Windows without developer mode. Paths of configs and tools
                # in the checkout work; `mmssm::` bases do not.
                self.warn(f'{target / name} was not linked: {error}')

    def _copy(self) -> None:
        target = Path(self.build_lib) / MIM
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in MIM_SOURCES:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=IGNORED)
            else:
                shutil.copy2(source, target / name)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        copies = (Path(self.build_lib) / MIM).rglob('*')
        return outputs + [str(path) for path in copies if path.is_file()]


setup(
    # One top-level package: mim and mmengine read the first line of
    # top_level.txt as the name of the module.
    packages=[
        *find_packages(include=['mmssm', 'mmssm.*']),
        'mmssm.kernels',
        *(f'mmssm.kernels.{name}' for name in find_packages('kernels')),
    ],
    package_dir={'mmssm.kernels': 'kernels'},
    include_package_data=True,
    cmdclass={'build_py': BuildWithMim},
)
