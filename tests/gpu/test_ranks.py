"""Several processes on GPUs: engines of a cluster, and ranks that communicate through NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ipygpumem import read_ranks
from ipygpumem.features.ranks.comparison import device_usage

CHECKOUT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

TRAIN = """
import os, sys, torch, torch.distributed as dist, ipygpumem

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)

def own(count):
    return torch.ones(count << 18, device="cuda")

def usual(count):
    return torch.ones(count << 18, device="cuda")

with ipygpumem.measure(rank_reports=sys.argv[1]):
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    tensors = usual(64)
    for _ in range(3):
        dist.all_reduce(tensors)
    if rank == int(os.environ["WORLD_SIZE"]) - 1:
        more = own(128)
    torch.cuda.synchronize()
dist.destroy_process_group()
"""


def torchrun(folder, ranks):
    script = folder / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    paths = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    completed = subprocess.run(
        [*command, str(script), str(folder / "run")],
        check=False,
        timeout=280,
        env={**os.environ, "PYTHONPATH": paths, "NCCL_NVLS_ENABLE": "0"},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, f"{completed.stdout}\n{completed.stderr}"
    return folder / "run"


@pytest.mark.parametrize("ranks", [2, 4])
def test_torchrun_with_nccl(tmp_path, ranks):
    import torch

    if torch.cuda.device_count() < ranks:
        pytest.skip(f"the test needs {ranks} GPUs")
    run = torchrun(tmp_path, ranks)
    result = read_ranks(run, workers=2)
    print(result)
    assert result.faults == () and result.lost == ()
    last = str(ranks - 1)
    for rank, member in enumerate(result.members):
        device = member.report.devices[f"cuda:{rank}"]
        assert device.held == (64 + (128 if member.name == last else 0)) * MIB
        assert member.origin.world == ranks
        if device.process_wide:  # NCCL's buffers and kernels are outside PyTorch: hundreds of MiB
            assert device.outside > 100 * MIB
    assert len(device_usage(result.members)) >= ranks
    assert len({usage.uuid for usage in device_usage(result.members)}) == len(device_usage(result.members))
    difference = result.difference
    assert difference.outlier == last and difference.outlier_peak - difference.typical_peak == 128 * MIB
    assert difference.lines[0][0].count("own()") and difference.lines[0][1:] == (0, 128 * MIB)
    assert difference.similar_count == ranks - 1
    assert all(member.highest.start_us for member in result.members) and result.clock(result.beside(ranks))


def cluster(run_python, engines, devices):
    return run_python(
        f"""
        import os, tempfile
        os.environ["IPYTHONDIR"] = tempfile.mkdtemp()
        os.chdir(os.environ["IPYTHONDIR"])
        import ipyparallel
        from IPython.core.interactiveshell import InteractiveShell
        from IPython.utils.capture import capture_output
        shell = InteractiveShell.instance()
        shell.run_cell("%load_ext ipygpumem")
        cluster = ipyparallel.Cluster(n={engines}, controller_ip="127.0.0.1", log_level=40)
        rc = cluster.start_and_connect_sync(activate=True)
        for number, device in enumerate({devices!r}):
            rc[number].execute(f"import os; os.environ['CUDA_VISIBLE_DEVICES'] = '{{device}}'", block=True)
        shell.user_ns["rc"] = rc

        def run(code):
            with capture_output() as shown:
                result = shell.run_cell(code)
            texts = [output.data["text/plain"] for output in shown.outputs]
            return result.success, "\\n".join([shown.stdout, shown.stderr, *texts])

        ok, joined = run("%gpumem engines rc")
        body = (
            "from ipygpumem.features.ranks.rank_files import rank_and_world\\n"
            "import torch\\nnumber = rank_and_world()[0]\\n"
            "tensors = torch.ones((number + 1) * 64 << 18, device='cuda')"
        )
        ok, plain = run("%%px --no-stream\\n" + body)
        from ipygpumem.parallel import active
        from ipygpumem.features.ranks.comparison import device_usage
        members = active().last.members
        usages = device_usage(members)
        held = [member.report.devices["cuda:0"].held for member in members]
        done, recorded = run("%%gpumem --engines --snapshot run_{{rank}}.pickle --collect here -v merged\\n" + body)
        merged = shell.user_ns["merged"]
        emit(
            joined=joined, plain=plain, recorded=recorded, ok=ok, done=done, held=held,
            users=[len(usage.users) for usage in usages], others=[usage.others for usage in usages],
            outlier=None if merged.difference is None else [merged.difference.outlier, merged.difference.lines[:1]],
            files=sorted(os.listdir("here")),
        )
        rc.close()
        cluster.stop_cluster_sync()
        """
    )


# not imported at module level: it makes jupyter_client keep dates as text, which causes warnings in later tests
@pytest.mark.skipif(find_spec("ipyparallel") is None, reason="ipyparallel is not installed")
def test_two_engines_on_two_gpus(run_python, torch_on_two_gpus):
    values = cluster(run_python, 2, ["0", "1"])
    print(values["plain"], values["recorded"], sep="\n")
    assert values["ok"] and values["done"]
    assert "2 engines monitored on 1 host, 2 GPUs" in values["joined"]
    assert values["held"] == [64 * MIB, 128 * MIB]
    assert values["users"] == [1, 1]
    assert values["files"] == ["run_0.pickle", "run_1.pickle"]
    assert values["outlier"][0] == "1"


@pytest.mark.skipif(find_spec("ipyparallel") is None, reason="ipyparallel is not installed")
def test_two_engines_on_one_gpu_share_a_device(run_python, torch):
    values = cluster(run_python, 2, ["0", "0"])
    print(values["plain"], values["recorded"], sep="\n")
    assert values["held"] == [64 * MIB, 128 * MIB]
    assert values["users"] == [2], "the shared device is counted once"
    assert "shared by 2 processes, counted once" in values["plain"]
