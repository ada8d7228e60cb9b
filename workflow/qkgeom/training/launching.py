"""Starts the processes that train one run together: torchrun's agent on each machine, srun for several nodes.

Each process is this very command line again; `ranks` tells it that it is one of several.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from qkgeom.environment import prepare_jobs
from qkgeom.errors import TransientFault, UsageError
from qkgeom.training.stopping import SIGNALS

GRACE = 600  # seconds to save a state in; who stops a job (SLURM: KillWait, GraceTime) usually has less patience
PORTS = range(20_000, 30_000)  # for nodes to meet; below those that Linux gives to anyone


def launch(processes: int, nodes: int, threads: int | None) -> int:
    """Runs this command line in so many processes, and ends them all when one ends badly.

    A stop (SIGTERM, Ctrl-C) is passed on to all of them. After a process died the others have 30 seconds to end.

    Args:
        processes: in all; as many on each node.
        nodes: of the SLURM job, if they are several; each gets a launcher of its own through srun.
        threads: CPU threads of the processes of a node.

    Returns:
        The exit code, as of one process.

    Raises:
        UsageError: several nodes without a SLURM job.
        TransientFault: a process was killed.
    """
    if nodes > 1 and "SLURM_JOB_ID" not in os.environ:
        raise UsageError("several nodes need a SLURM job", found=f"{nodes} nodes", fix="set `nodes_per_run: 1`, or use SLURM")
    prepare_jobs(Path(__file__).parents[2])
    command = [sys.executable, "-m", "qkgeom", *sys.argv[1:]]
    if nodes > 1 and os.environ.get("SLURM_STEP_NUM_TASKS") != str(nodes):
        return _on_each_node(command, nodes, threads or 1)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DistributedDataParallel would like to know of unused weights
    os.environ["OMP_NUM_THREADS"] = str(max(1, (threads or os.cpu_count() or 1) * nodes // processes))
    return _on_this_node(command, processes // nodes, nodes)


def _on_this_node(command: list[str], processes: int, nodes: int) -> int:
    """Starts as many processes here, which meet those of the other nodes."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    def stop(number: int, frame: FrameType | None) -> None:
        # Once: a second one (SLURM signals every process of a job) would end the launcher, and so the processes, unsaved.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise SignalException("the training was told to stop", signal.Signals(number))

    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=processes,
        run_id=os.environ.get("SLURM_JOB_ID", str(os.getpid())),
        rdzv_backend="c10d",
        rdzv_endpoint=_first_node() if nodes > 1 else "localhost:0",
        local_addr=None if nodes > 1 else "localhost",
        max_restarts=0,
        shutdown_timeout=GRACE,
        signals_to_handle="SIGHUP",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    for number in SIGNALS:
        signal.signal(number, stop)
    try:
        elastic_launch(config, command[0])(*command[1:])
    except SignalException:
        return 1
    except ChildFailedError as error:
        return _exit_code({rank: failure.exitcode for rank, failure in error.failures.items()})
    return 0


def _exit_code(codes: Mapping[int, int]) -> int:
    """That of the processes, by rank, of which those that ended by themselves have told why."""
    if killed := [f"rank {rank}: signal {-code}" for rank, code in codes.items() if code < 0 and -code != signal.SIGTERM]:
        fix = "run it again: it goes on from its last saved state"
        raise TransientFault("a process of the training was killed", found=", ".join(killed), fix=fix)
    return max(1, *codes.values())


def _on_each_node(command: list[str], nodes: int, threads: int) -> int:
    """Starts a launcher on each node of the SLURM job."""
    step = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={threads}"]
    process = subprocess.Popen(["srun", *step, "--kill-on-bad-exit=1", *command], start_new_session=True)

    def stop(number: int, frame: FrameType | None) -> None:
        # Past srun, which kills its tasks at once when it is told to end.
        subprocess.run(["scancel", "--signal=TERM", os.environ["SLURM_JOB_ID"]], check=False)

    for number in SIGNALS:
        signal.signal(number, stop)
    code = process.wait()
    return code if code in (0, UsageError.exit_code) else 1


def _first_node() -> str:
    """Where the launchers of a SLURM job meet: its first node, and a port that other jobs do not have."""
    names = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    first = subprocess.run(names, capture_output=True, text=True, check=True).stdout.split()[0]
    return f"{first}:{PORTS[int(os.environ['SLURM_JOB_ID']) % len(PORTS)]}"
