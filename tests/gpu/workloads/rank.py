"""One rank of a program with several processes: run its cells, with the measured ones under ``ipygpumem.measure``.

torchrun --nproc-per-node=2 rank.py PROGRAM OPTION DIRECTORY
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))


def main():
    from tests.gpu.workloads import kernel, probe
    from tests.gpu.workloads.program import read_program

    path, option, directory = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    rank = int(os.environ["RANK"])
    program = read_program(path)
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
    namespace = {"__name__": "__main__"}
    exec(kernel.SEED, {})
    if option in kernel.WITHOUT:
        exec(kernel.PRELOAD, {})
    else:
        import ipygpumem

        ipygpumem.preload_pytorch()

    def measured():
        model = namespace.get(program.model)
        if option in kernel.WITHOUT:
            return contextlib.nullcontext()
        options = {
            "loaded": {},
            "snapshot": {"snapshot": str(directory / f"{rank}.pickle")},
            "lines": {"lines": namespace.get("train_step", True)},
            "modules": {"modules": model},
            "outside": {"outside": True},
            "limit": {"limit": "100GiB"},
            "timeline": {"timeline": str(directory / f"{rank}.html")},
        }
        return ipygpumem.measure(**options[option])

    times, start = [], time.perf_counter()
    for number, cell in enumerate(program.cells):
        filename = directory / f"cell_{number}_{rank}.py"
        filename.write_text(cell.code, encoding="utf-8")  # so that the lines of the program can be listed
        code = compile(cell.code, str(filename), "exec")
        if not cell.measured:
            exec(code, namespace)
            continue
        runs = []
        for _ in range(1 if cell.once else kernel.REPEATS):
            began = time.perf_counter()
            with measured() as measurement:
                exec(code, namespace)
            runs.append(time.perf_counter() - began)
        times.append(min(runs[1:] or runs))
    total = time.perf_counter() - start
    target = directory / f"observed_{rank}.json"
    probe.observe(namespace, target)
    observed = json.loads(target.read_text(encoding="utf-8"))
    if option not in kernel.WITHOUT:
        observed["report"] = measurement.report.to_dict()
    record = {"seconds": sum(times), "total": total, "observed": observed}
    (directory / f"rank_{rank}.json").write_text(json.dumps(record), encoding="utf-8")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
