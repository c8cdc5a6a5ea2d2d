"""The time that the panel adds to each failed allocation in loops of accelerate and transformers that retry."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import statistics
import time

SECONDS = 20  # for the repetitions with each library

RETRY = """
import time, torch, transformers
from accelerate.utils import find_executable_batch_size
torch.cuda.set_per_process_memory_fraction((5 << 30) / torch.cuda.get_device_properties(0).total_memory)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=4)).cuda()
hog = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
"""
ACCELERATE = """
@find_executable_batch_size(starting_batch_size=128)
def train(batch_size):
    ids = torch.randint(0, 50_000, (batch_size, 256), device="cuda")
    model(ids, labels=ids).loss.backward()
start = time.perf_counter(); train(); torch.cuda.synchronize(); print("SECONDS", time.perf_counter() - start)
"""
TRAINER = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return {"input_ids": torch.full((256,), i), "labels": torch.full((256,), i)}
arguments = transformers.TrainingArguments("/tmp/trainer", auto_find_batch_size=True, max_steps=1, report_to=[],
    per_device_train_batch_size=64, save_strategy="no", disable_tqdm=True)
trainer = transformers.Trainer(model, arguments, train_dataset=Data())
start = time.perf_counter(); trainer.train(); torch.cuda.synchronize(); print("SECONDS", time.perf_counter() - start)
"""
LOOPS = {"find_executable_batch_size (accelerate)": ACCELERATE, "auto_find_batch_size (Trainer)": TRAINER}
HOLDER = "hog"  # the name that the panel must contain


def _run(client, code):
    """Run a cell in a kernel and return the text that it displays."""
    texts, message = [], client.execute(code)
    while True:
        reply = client.get_iopub_msg(timeout=100)
        if reply["parent_header"].get("msg_id") == message:
            content = reply["content"]
            texts.append(content.get("text") or content.get("data", {}).get("text/plain", ""))
            texts += content.get("traceback", ())
            if content.get("execution_state") == "idle":
                break
    client.get_shell_msg(timeout=100)
    return "\n".join(texts)


def _seconds(text):
    return float(text.rpartition("SECONDS ")[2].split()[0])


def _measure(client, loop):
    _run(client, RETRY)
    _run(client, loop)  # loads kernels
    added, total, failures, named = [], [], 0, True
    end = time.monotonic() + SECONDS
    while not added or time.monotonic() < end:
        without = _seconds(_run(client, loop))
        _run(client, "%load_ext ipygpumem")
        text = _run(client, loop)
        _run(client, "%unload_ext ipygpumem")
        match = re.search(r"(\d+) allocations failed in this cell", text)
        failures = int(match[1]) if match else text.count("(caught by the code)")
        added.append((_seconds(text) - without) / max(failures, 1))
        total.append((without, _seconds(text)))
        named = named and HOLDER in text.partition("memory holders at the")[2]
    return statistics.median(added), total[len(total) // 2], failures, named


def run():
    if not importlib.util.find_spec("transformers") or not importlib.util.find_spec("accelerate"):
        return [{"measure": "skipped", "value": "transformers and accelerate are not installed"}]
    import torch
    from jupyter_client.manager import start_new_kernel

    if not torch.cuda.is_available():
        return [{"measure": "skipped", "value": "needs a GPU"}]
    rows = []
    for name, loop in LOOPS.items():
        manager, client = start_new_kernel()
        try:
            added, (without, with_panel), failures, named = _measure(client, loop)
        finally:
            client.stop_channels()
            with contextlib.suppress(RuntimeError):
                manager.shutdown_kernel(now=True)
        value = f"{added:.3f} s for each of {failures} failed allocations ({with_panel:.2f} s / {without:.2f} s)"
        value += "" if named else f"; {HOLDER} is missing in the panel"
        rows.append({"measure": f"{name}, longer than without", "value": value, "s": added, "target": "<= 0.3 s"})
    return rows
