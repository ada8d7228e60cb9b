"""A private SLURM cluster of one node, for tests: this machine as root, with two partitions and two GPUs that are none."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=1,sched_interval=2
GresTypes=gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
MinJobAge=3600
KillWait=2
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000 Gres=gpu:model_x:2
PartitionName=cpu Nodes=node Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=node MaxTime=INFINITE State=UP
"""
DEVICES = "Name=gpu Type=model_x File=/dev/null\nName=gpu Type=model_x File=/dev/zero\n"


def missing() -> str:
    """What this machine lacks for a cluster; empty if nothing."""
    lacks = [name for name in DAEMONS if not shutil.which(name, path=_path())]
    return f"needs {', '.join(lacks)} on PATH (Debian: slurm-wlm munge)" if lacks else "" if os.geteuid() == 0 else "needs root"


class Cluster:
    """The commands of a running cluster."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder / 'bin'}:{_path()}"}

    def run(self, *command: str) -> str:
        """What a command of SLURM prints."""
        env = {**os.environ, **self.environment}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout

    def jobs(self) -> list[dict[str, str]]:
        """All jobs so far, first submitted first: what `scontrol show job` says of each."""
        lines = self.run("scontrol", "show", "job", "--oneliner").splitlines()
        return [dict(re.findall(r"(\S+?)=(.*?)\s*(?= \S+=|$)", line)) for line in lines if line.startswith("JobId")]

    def node_state(self) -> str:
        return self.run("sinfo", "--noheader", "--nodes", "node", "--format", "%T").split()[0]

    def knows_on_node(self, job: str) -> bool:
        """Whether the node still has a job's processes, or ends them."""
        env = {**os.environ, **self.environment}
        return subprocess.run(["scontrol", "listpids", job, "node"], env=env, capture_output=True, timeout=60).returncode == 0

    def logs(self) -> str:
        """The ends of the daemons' logs, for the message of a failed test."""
        return "\n".join(f"{name}:\n{(self.folder / f'{name}.log').read_text()[-2000:]}" for name in DAEMONS)


def wait_until(condition, seconds: float, *, every: float = 0.5):
    """The condition's value once it is true.

    Raises:
        TimeoutError: it stays false.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {condition}")
        time.sleep(every)
    return value


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Starts the daemons and ends them by their own ids, whatever happens; they end with this process, too."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a short path: a socket's has at most 107 characters
    cluster = Cluster(folder)
    daemons: list[subprocess.Popen] = []
    try:
        _write(folder)
        munge = folder / "munge"
        munged = ["--key-file", munge / "key", "--socket", munge / "socket", "--pid-file", munge / "pid"]
        munged += ["--log-file", munge / "log", "--seed-file", munge / "seed", "--force", "--foreground"]
        daemons.append(_start(cluster, "munged", *munged))
        wait_until((munge / "socket").exists, 30)
        daemons.append(_start(cluster, "slurmctld", "-D", "-i"))
        daemons.append(_start(cluster, "slurmd", "-D"))
        wait_until(lambda: _is_idle(cluster, daemons), 60)
        yield cluster
    finally:
        if len(daemons) == len(DAEMONS) and all(each.poll() is None for each in daemons):
            _end_jobs(cluster)
        for each in reversed(daemons):
            each.terminate()
            try:
                each.wait(20)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
        shutil.rmtree(folder)


def _write(folder: Path) -> None:
    for name in ("bin", "munge", "state", "spool"):
        (folder / name).mkdir()
    for path in (folder, folder / "munge"):
        path.chmod(0o755)
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=host, ports=_free_ports(2)))
    (folder / "gres.conf").write_text(DEVICES)
    # Snakemake's plugin takes SLURM_CONF away from the jobs' srun, which elsewhere finds /etc/slurm/slurm.conf.
    (folder / "bin/srun").write_text(f'#!/bin/sh\nSLURM_CONF="{folder}/slurm.conf" exec {shutil.which("srun")} "$@"\n')
    (folder / "bin/srun").chmod(0o755)
    (folder / "munge/key").touch(0o400)
    (folder / "munge/key").write_bytes(os.urandom(128))


def _start(cluster: Cluster, name: str, *arguments: object) -> subprocess.Popen:
    command = ["setpriv", "--pdeathsig", "TERM", name, *map(str, arguments)]
    with (cluster.folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(command, env={**os.environ, **cluster.environment}, stdout=log, stderr=log)


def _is_idle(cluster: Cluster, daemons: list[subprocess.Popen]) -> bool:
    ended = [name for name, each in zip(DAEMONS, daemons, strict=True) if each.poll() is not None]
    assert not ended, f"{ended} ended\n{cluster.logs()}"
    try:
        return cluster.node_state() == "idle"
    except (subprocess.CalledProcessError, IndexError):  # slurmctld is not there yet
        return False


def _end_jobs(cluster: Cluster) -> None:
    cluster.run("scancel", "--user", "root")
    wait_until(lambda: not cluster.run("squeue", "--noheader", "--states", "running,completing,pending").strip(), 60)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _path() -> str:
    return os.environ["PATH"] + ":/usr/sbin"  # the daemons are there, which not everyone has on PATH
