"""Ray inside a SLURM job: the first task runs head and command, the others join and leave with the head."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lightning_nli.launch.ray_node import head_port, ray_command, run_node
from lightning_nli.types import UserError

COMMAND = """\
import sys, time
from lightning_nli.tuning.search import Resources, check_resources, ray_session

address = sys.argv[sys.argv.index("--ray-address") + 1]
with ray_session(Resources(ray_address=address)) as ray:
    deadline = time.monotonic() + 90
    while len([node for node in ray.nodes() if node["Alive"]]) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    check_resources(ray, Resources(cpus=1))
    print("NODES", len(ray.nodes()), flush=True)
sys.exit(75)
"""


def test_outside_of_a_job_the_mend_is_named(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(UserError, match="on one machine `lnli tune` starts Ray by itself"):
        run_node(["lnli"])


def test_the_head_has_no_dashboard_and_sends_no_reports():
    words = ray_command("10.0.0.1", 20_007, is_head=True)
    assert {"--head", "--port=20007", "--include-dashboard=false", "--disable-usage-stats"} <= set(words)
    assert "--address=10.0.0.1:20007" in ray_command("10.0.0.1", 20_007, is_head=False)
    assert head_port("7") != head_port("8") and 20_000 <= head_port("123456789") < 40_000


@pytest.mark.slow
def test_two_tasks_make_one_cluster_and_the_commands_code_is_the_steps(tmp_path):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho 127.0.0.1\n")
    scontrol.chmod(0o755)
    (tmp_path / "command.py").write_text(COMMAND)
    path = f"{tmp_path}:{os.environ['PATH']}"
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node[1-2]", "PATH": path}
    slurm["RAY_gcs_rpc_server_reconnect_timeout_s"] = "3"  # a node waits this long for a head that is gone; else 60
    words = [sys.executable, "-m", "lightning_nli.launch.ray_node", sys.executable, str(tmp_path / "command.py")]
    tasks = [
        subprocess.Popen(
            words,
            cwd=tmp_path,
            env=os.environ | slurm | {"SLURM_PROCID": str(number)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        assert "NODES 2" in tasks[0].communicate(timeout=240)[0] and tasks[0].returncode == 75
        assert tasks[1].wait(timeout=120) == 0
        assert not list(tmp_path.glob(".ray-*"))
    finally:
        for task in tasks:
            task.kill()
