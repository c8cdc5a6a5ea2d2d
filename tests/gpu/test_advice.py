"""Predicted changes of steps on a real GPU, compared with steps in which these changes were made."""

import gc

import pytest

from gpu.test_fit import Training, make_gpt, make_unet

MIB = 1 << 20


def measured(torch, training, size, parts=1):
    for _ in range(2):  # the first run leaves the gradients that exist before every later run
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        if parts == 1:
            training.step(size)
            continue
        training.optimizer.zero_grad()
        for _ in range(parts):
            with torch.autocast("cuda", torch.float16, enabled=training.autocast):
                loss = training.loss(size // parts)
            training.scaler.scale(loss).backward()
            del loss
        training.scaler.step(training.optimizer)
        training.scaler.update()
    return torch.cuda.max_memory_allocated()


def run_changed(torch, training, change, size):
    """Make a change, run the step, and undo the change; return None if the change cannot be made in this process."""
    if change.kind == "accumulation":
        return measured(torch, training, size, int(change.name.split()[-2]))
    if change.kind == "checkpointing":
        exec(change.code, {"self": training})  # noqa: S102 (the code that is shown to users)
        try:
            return measured(torch, training, size)
        finally:
            for module in training.model.modules():
                vars(module).pop("forward", None)
    options = {"AdamW(foreach=False)": {"foreach": False}, "AdamW(fused=True)": {"fused": True}}.get(change.name)
    if options is None:
        return None
    optimizer = training.optimizer
    before = [dict(group) for group in optimizer.param_groups]
    optimizer.state.clear()  # the state of fused optimizers is on another device
    for group in optimizer.param_groups:
        group.update({"foreach": False, "fused": False} | options)
    try:
        return measured(torch, training, size)
    finally:
        optimizer.state.clear()
        for group, old in zip(optimizer.param_groups, before, strict=True):
            group.update({name: old[name] for name in ("foreach", "fused")})


@pytest.mark.parametrize(
    ("make", "options", "size"),
    [
        (make_gpt, {}, 64),
        (make_gpt, {"autocast": True}, 64),
        (make_gpt, {}, 4),
        (make_unet, {}, 256),
    ],
)
def test_changes(torch, make, options, size):
    import ipygpumem

    training = Training(torch, make, **options)
    for _ in range(2):
        training.step(4)
    result = ipygpumem.fit(training.step, range(1, 4097), most=0.05)
    assert not result.refusal, result.refusal
    advice = result.advice(size)
    print(advice)
    assert len(advice)
    pairs = [(advice.current.allocated, measured(torch, training, size))]
    for change in advice:
        peak = run_changed(torch, training, change, size)
        if peak is not None:
            pairs.append((change.allocated, peak))
            print(f"{change.name}: predicted {change.allocated / MIB:,.1f} MiB, measured {peak / MIB:,.1f} MiB")
    for predicted, peak in pairs:
        assert predicted == pytest.approx(peak, rel=0.02)
    for predicted, peak in pairs:
        for other_predicted, other_peak in pairs:
            assert not (predicted < 0.96 * other_predicted and peak >= other_peak)


class TrainingInContext(Training):
    code = "with torch.enable_grad():"

    def step(self, batch):
        torch = self.torch
        self.optimizer.zero_grad()
        with eval(self.code.partition("\n")[0][len("with ") : -1], {"torch": torch}):  # noqa: S307
            loss = self.loss(batch)
        loss.backward()
        del loss
        self.optimizer.step()


@pytest.mark.parametrize(("make", "size"), [(make_gpt, 64), (make_unet, 256)])
def test_contexts(torch, make, size):
    import ipygpumem

    training = TrainingInContext(torch, make)
    training.step(4)
    before = training.digest()
    result = ipygpumem.fit(training.step, range(1, 4097), most=0.05)
    advice = result.advice(size)
    print(advice)
    assert not advice.notes
    assert training.digest() == before
    changes = {change.name: change for change in advice}
    estimates = ipygpumem.fit(training.step, range(1, 4097), dry=True).advice(size)
    estimated = {change.name: change.allocated for change in estimates}
    print(estimates)
    for name in ("bf16 autocast", "save_on_cpu"):
        training.code = changes[name].code
        peak = measured(torch, training, size)
        predicted = changes[name].allocated
        print(f"{name}: predicted {predicted / MIB:,.1f} MiB, measured {peak / MIB:,.1f} MiB")
        assert predicted == pytest.approx(peak, rel=0.02)
        assert estimated[name] == pytest.approx(peak, rel=0.1)
    training.model.to(torch.bfloat16)
    training.optimizer.state.clear()
    training.code = "with torch.enable_grad():"
    if make is make_gpt:  # the inputs of the other model would have to be converted
        peak = measured(torch, training, size)
        print(f"bf16 parameters: estimated {estimated['bf16 parameters'] / MIB:,.1f} MiB, measured {peak / MIB:,.1f}")
        assert estimated["bf16 parameters"] == pytest.approx(peak, rel=0.1)


def test_trials(torch):
    import ipygpumem

    training = Training(torch, make_gpt)
    training.step(4)
    before = training.digest()
    result = ipygpumem.fit(training.step, range(1, 4097), most=0.05, try_changes=True)
    print(result)
    assert len(result.trials) >= 2
    assert all(abs(trial.error) <= 0.02 for trial in result.trials)
    assert training.digest() == before
    times = [change.added_time for change in result.advice() if change.kind == "checkpointing"]
    assert times == sorted(times)
    assert 0 < times[-1] < 0.6
