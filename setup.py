"""Build steps: ``kernels/`` as mmssm.kernels, C kernels, files in .mim.

``mim`` and mmengine look for configs, tools and ``model-index.yml`` in
``mmssm/.mim``. An editable install gets links there, so that edits are seen;
a wheel gets copies, which are made in the build directory and never in the
source tree.

The kernels in C become one shared library. It is optional: without a compiler
the installation succeeds, and operators on the CPU run on torch.
"""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CCompilerError, CompileError, ExecError

ROOT = Path(__file__).resolve().parent
MIM = Path('mmssm', '.mim')
MIM_SOURCES = ('configs', 'tools', 'model-index.yml')
IGNORED = shutil.ignore_patterns('__pycache__', '*.py[cod]')

NATIVE = Path('kernels/cpu')
# What the library is, compiled once; every other source is kernels.
NATIVE_ISA = str(NATIVE / 'isa.c')
NATIVE_SOURCES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / NATIVE).glob('*.c')
)
NATIVE_HEADERS = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / NATIVE).glob('*.h')
)
# Not -ffast-math: infinities and NaNs have to come out as such. C11 alone
# would forbid to contract a product and a sum to one instruction.
NATIVE_FLAGS = [
    '-std=c11',
    '-O3',
    '-g0',
    '-fPIC',
    '-fvisibility=hidden',
    '-fno-math-errno',
    '-fno-trapping-math',
    '-ffp-contract=fast',
]
# Each one holds those before it; the library picks one when it is loaded.
INSTRUCTION_SETS = {
    'baseline': [],
    'avx2': ['-mavx2', '-mfma'],
    'avx512': [
        '-mavx2',
        '-mfma',
        '-mavx512f',
        '-mavx512vl',
        '-mavx512dq',
        '-mavx512bw',
        '-mprefer-vector-width=512',
    ],
}


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


class BuildNative(build_ext):
    """``build_ext`` that compiles each kernel once per instruction set."""

    def get_ext_filename(self, fullname: str) -> str:
        # Not a Python module: the dot keeps tools from listing it as one.
        return os.path.join(*fullname.split('.')) + '.kernels.so'

    def copy_extensions_to_source(self) -> None:
        # Never written over: a process may have it loaded. And an old one
        # must not stay behind a build that failed.
        for library in (ROOT / NATIVE).glob('_native.kernels.so'):
            library.unlink()
        super().copy_extensions_to_source()

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        # One of an earlier build would be installed if this one fails.
        target.unlink(missing_ok=True)
        try:
            self._build(target)
        except (CCompilerError, ExecError, OSError) as error:
            self.warn(
                f'the native CPU kernels were NOT built: {error}\n'
                'mmssm works without them: on the CPU its operators then use '
                "backend='torch', which is slower. With a C compiler (gcc or "
                'clang) install again to build them.'
            )

    def _build(self, target: Path) -> None:
        if self.compiler.compiler_type != 'unix':
            raise CompileError(
                f'compilers of type {self.compiler.compiler_type!r} are not '
                'supported; gcc or clang is needed'
            )
        # Fails here, with what the compiler said, if there is none.
        self._compile_probe(NATIVE_FLAGS)
        common = NATIVE_FLAGS
        if self._accepts([*NATIVE_FLAGS, '-fopenmp']):
            common = [*NATIVE_FLAGS, '-fopenmp']
        else:
            self.warn('no OpenMP: the native CPU kernels will use one thread')
        sets = {
            name: flags
            for name, flags in INSTRUCTION_SETS.items()
            if self._accepts([*NATIVE_FLAGS, *flags])
        }
        has = [(f'MMSSM_WITH_{name.upper()}', '1') for name in sets]
        jobs = [(NATIVE_ISA, 'isa', has, common)]
        for name, flags in sets.items():
            for double in '01':
                macros = [('MMSSM_ISA', name), ('MMSSM_DOUBLE', double)]
                jobs += [
                    (source, name + double, macros, [*common, *flags])
                    for source in NATIVE_SOURCES
                    if source != NATIVE_ISA
                ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(self._compile, *zip(*jobs, strict=True)))
        self.mkpath(str(target.parent))
        self.compiler.link_shared_object(
            objects,
            str(target),
            extra_postargs=['-fopenmp'] if '-fopenmp' in common else [],
        )

    def _compile(
        self,
        source: str,
        folder: str,
        macros: list[tuple[str, str]],
        flags: list[str],
    ) -> str:
        (built,) = self.compiler.compile(
            [source],
            output_dir=os.path.join(self.build_temp, folder),
            macros=macros,
            include_dirs=[str(NATIVE)],
            extra_postargs=flags,
        )
        return built

    def _accepts(self, flags: list[str]) -> bool:
        try:
            self._compile_probe(flags)
        except CompileError:
            return False
        return True

    def _compile_probe(self, flags: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, 'probe.c')
            headers = ['#include <math.h>']
            if '-fopenmp' in flags:
                headers.append('#include <omp.h>')
            source.write_text('\n'.join([*headers, 'int probe;', '']))
            self.compiler.compile(
                [str(source)], output_dir=folder, extra_postargs=flags
            )


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
    ext_modules=[
        Extension(
            'mmssm.kernels.cpu._native',
            NATIVE_SOURCES,
            depends=NATIVE_HEADERS,
            optional=True,
        )
    ],
    cmdclass={'build_py': BuildWithMim, 'build_ext': BuildNative},
)
