"""Running the tools in processes of their own, on the CPU."""

import os
import socket
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / 'tools'


def run(*command: object, cwd: Path, **env: str) -> str:
    """Run a command on the CPU and return its output; fail if it fails."""
    result = run_unchecked(*command, cwd=cwd, **env)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    return output


def run_unchecked(
    *command: object, cwd: Path, **env: str
) -> subprocess.CompletedProcess:
    """Run a command on the CPU."""
    binaries = str(Path(sys.executable).parent)
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            'CUDA_VISIBLE_DEVICES': '',
            'PATH': os.pathsep.join([binaries, os.environ['PATH']]),
            **env,
        },
    )


def tool(name: str, *args: object, cwd: Path) -> str:
    """Run a tool with this interpreter."""
    return run(sys.executable, TOOLS / name, *args, cwd=cwd)


def free_port() -> str:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return str(listener.getsockname()[1])
