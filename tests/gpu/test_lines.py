"""Memory by line on a real GPU, compared with pytorch_memlab for the same code and with PyTorch's counters."""

import time

import pytest

MIB = 1 << 20


def line_uses(report, title):
    (device,) = report.lines
    (listing,) = [listing for listing in device.listings if title in listing.title]
    return {line.number: line.use for line in listing.lines if line.use is not None}


def work(torch, n, steps):
    x = torch.ones(n, n, device="cuda")
    slices = []
    for i in range(steps):
        y = x @ x
        z = torch.relu(y) + i
        slices.append(z[: n // 4].clone())
        del y
    w = torch.cat(slices)
    slices = None
    w = w.sort(dim=0).values
    return w.sum()


def train(torch, model, optimizer, x):
    optimizer.zero_grad()
    hidden = model(x)
    loss = hidden.square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def check_sums(report):
    (device,) = report.lines
    device_report = report.devices[device.device]
    assert device.end_requested + device.end_rounding + device.end_pending == device.end_allocated
    assert device.end_requested == device_report.after.requested, "the history and the counter agree"
    assert device.end_allocated == device_report.after.allocated
    assert device.peak_requested == device_report.high.requested
    assert device.peak_requested + device.peak_rounding + device.peak_pending == device_report.high.allocated


def measure_lines(function, *arguments):
    import ipygpumem

    with ipygpumem.measure(lines=function) as m:
        function(*arguments)
    check_sums(m.report)
    return line_uses(m.report, function.__name__)


def measure_with_memlab(function, *arguments):
    """Return the peak of active bytes and the number of allocations of each line, measured with pytorch_memlab."""
    memlab = pytest.importorskip("pytorch_memlab", reason="pytorch_memlab is not installed")
    with memlab.LineProfiler(function) as profiler:
        function(*arguments)
    peaks, allocations = {}, {}
    for record in profiler._raw_line_records:
        line = record["line"]
        peaks[line] = max(peaks.get(line, 0), record["active_bytes.all.peak"])
        allocations[line] = allocations.get(line, 0) + record["active.all.allocated"]
    return peaks, allocations


def check_against_memlab(function, *arguments):
    function(*arguments)  # one-time allocations of libraries come first
    lines = measure_lines(function, *arguments)
    peaks, allocations = measure_with_memlab(function, *arguments)
    compared = 0
    for line, use in lines.items():
        if use.peak is None or line not in peaks:
            continue
        compared += 1
        # requested and rounded sizes differ at most by the remainder of blocks that are not split
        assert use.peak <= peaks[line] <= use.peak + 4 * MIB, line
        assert use.allocations == allocations[line], line
    for line, count in allocations.items():
        assert not count or lines[line].allocations == count
    return compared


def test_loop_peaks_match_pytorch_memlab(torch):
    assert check_against_memlab(work, torch, 2048, 4) >= 6


def test_training_step_peaks_match_pytorch_memlab(torch):
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4096, 1024, device="cuda")
    assert check_against_memlab(train, torch, model, optimizer, x) >= 4


def test_backward_memory_is_attributed_to_calling_line(torch):
    model = torch.nn.Linear(2048, 2048, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.randn(1024, 2048, device="cuda", requires_grad=True)
    upstream = torch.ones(1024, 2048, device="cuda")

    def step():
        y = model(x)
        y.backward(upstream)

    step()
    optimizer.zero_grad()
    x.grad = None
    lines = measure_lines(step)
    backward = lines[max(lines)]
    assert backward.kept >= (2048 * 2048 + 1024 * 2048) * 4, "the gradients of weight and input"


def test_user_peak_counters_are_unchanged(torch):
    keep = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    high = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    del high
    before = torch.cuda.max_memory_allocated()
    measure_lines(work, torch, 512, 2)
    assert torch.cuda.max_memory_allocated() == before
    del keep


def test_recording_is_faster_than_tracing_lines(torch):
    import ipygpumem

    def loop():
        x = torch.ones(64, 64, device="cuda")
        for _ in range(5000):
            y = x * 2
            del y

    def best(**options):
        times = []
        for _ in range(3):
            with ipygpumem.measure(**options):
                start = time.perf_counter()
                loop()
                torch.cuda.synchronize()
                times.append(time.perf_counter() - start)
        return min(times)

    loop()
    unrecorded, recorded = best(), best(lines=True)
    memlab = pytest.importorskip("pytorch_memlab", reason="pytorch_memlab is not installed")
    start = time.perf_counter()
    with memlab.LineProfiler(loop):
        loop()
    traced = time.perf_counter() - start
    print(f"LINES plain {unrecorded:.3f} s, recorded {recorded:.3f} s, pytorch_memlab {traced:.3f} s")
    assert recorded < traced
