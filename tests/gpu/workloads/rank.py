"""One rank of a program with several processes: run its cells, with the measured ones under ``ipygpumem.measure``.

torchrun --nproc-per-node=2 rank.py PROGRAM OPTION DIRECTORY
"""

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from tests.gpu.workloads import kernel, probe
from tests.gpu.workloads.program import read_program


def main():
    path, option, directory = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    rank = int(os.environ["RANK"])
    program = read_program(path)
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
    namespace = globals()  # as in a script, so that holders are found by their names
    exec(kernel.SEED, {})
    if option in kernel.WITHOUT:
        exec(kernel.PRELOAD, {})
    else:
        import ipygpumem

        ipygpumem.preload_pytorch()
    times, start, measurement = [], time.perf_counter(), None
    for number, cell in enumerate(program.cells):
        filename = directory / f"cell_{number}_{rank}.py"
        filename.write_text(cell.code, encoding="utf-8")  # so that the lines of the program can be listed
        code = compile(cell.code, str(filename), "exec")
        runs = []
        for _ in range(kernel.REPEATS if cell.measured and not cell.once else 1):
            began = time.perf_counter()
            with measured(option, directory, namespace, program.model) if cell.measured else nullcontext() as block:
                exec(code, namespace)
            runs.append(time.perf_counter() - began)
        if cell.measured:
            times.append(min(runs[1:] or runs))
            measurement = block
    record = {"seconds": sum(times), "total": time.perf_counter() - start, "observed": observe(namespace, directory)}
    if measurement is not None:
        record["observed"]["report"] = measurement.report.to_dict()
    if option == "loaded":
        began = time.perf_counter()
        record["after who"] = observe(namespace, directory, search=True)
        record["who"] = {"seconds": time.perf_counter() - began}
    (directory / f"rank_{rank}.json").write_text(json.dumps(record), encoding="utf-8")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def measured(option, directory, namespace, model):
    if option in kernel.WITHOUT:
        return nullcontext()
    import ipygpumem

    path = str(directory / os.environ["RANK"])
    options = {
        "loaded": {},
        "snapshot": {"snapshot": f"{path}.pickle"},
        "lines": {"lines": namespace.get("train_step", True)},
        "modules": {"modules": namespace.get(model)},
        "outside": {"outside": True},
        "limit": {"limit": "100GiB"},
        "timeline": {"timeline": f"{path}.html"},
    }
    return ipygpumem.measure(**options[option])


def observe(namespace, directory, *, search=False):
    target = directory / f"observed_{os.environ['RANK']}.json"
    probe.observe(namespace, target, search)
    return json.loads(target.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
