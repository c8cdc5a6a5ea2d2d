"""Tests that command lines are shown without secrets, but with plain arguments unchanged."""

from __future__ import annotations

import pytest

from ipygpumem.sources.command_lines import redact_command, short_name

KEY = "0123456789abcdef0123456789abcdef01234567"
PY = ["python", "t.py"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "/x/kernel-1.json"], "python3 -m ipykernel_launcher"),
        (["/usr/bin/python3", "-u", "-X", "dev", "/home/me/train.py", "--lr", "3"], "python3 train.py"),
        (["python", "-c", "import secrets"], "python -c"),
        (["python"], "python"),
        (["C:\\tools\\python.exe", "C:\\me\\a.py"], "python.exe a.py"),
        (["/opt/ollama/bin/ollama", "serve"], "ollama"),
        (["ray::train (task 5)"], "ray::train"),
        (["/x/" + "y" * 100], "y" * 60),
        ([""], ""),
        ([], ""),
    ],
)
def test_program_and_script(arguments, name):
    assert short_name(arguments) == name


def test_secrets_in_a_command_line():
    words = ["app", "--api-key", "abc", "--token=def", "HF_TOKEN=ghi", "--lr=1", "https://me:pass@host/x", "-n", "5"]
    expected = "app --api-key *** --token=*** HF_TOKEN=*** --lr=1 https://***@host/x -n 5"
    assert redact_command(words) == expected
    assert redact_command([" ".join(words)]) == expected, "a process title"
    assert redact_command(["app", "x" * 500]) == f"app {'x' * 195}…"


@pytest.mark.parametrize(
    "words",
    [
        ["--wandb-key", "SECRET"],
        ["--wandb_key=SECRET"],
        ["--key", "SECRET"],
        ["--key=SECRET"],
        ["--apikey=SECRET"],
        ["--apiKey", "SECRET"],
        ["-H", "Authorization: Bearer SECRET"],
        ["--header=Authorization: SECRET"],
        ["http://h/?a=1&token=SECRET"],
        ["--url=postgres://u:SECRET@host/db"],
        ["postgres://u:SEC/RET@host/db"],
        ["--passphrase", "SECRET"],
        ["--bearer", "SECRET"],
        ["--password", "1234SECRET"],
        ["--password", "12345"],
        ['{"token": "SECRET"}'],
        ["--config", '{"token": "SECRET"}'],
        ["--set", "a=b,token=SECRET"],
        ["trainer.wandb.api_key=SECRET"],
        ["token", "SECRET"],
        ["--token:SECRET"],
        ["-t", "SECRET"],
        ["-pSECRET"],
        ["-p12SECRET"],
        ["-PSECRET"],
        ["--hf_token", "'my", "SECRET'"],
        ["hf_aBcDeFSECRETxxxxxxxx"],
        ["sk-proj-SECRETabc123"],
        ["ghp_SECRET0123456789"],
        ["SECRET" + KEY],
        ["--run", "SECRETaBcDeFgHiJkLmNoPqRs"],
        ["--set=env.HF_TOKEN=SECRET"],
        ["-c", "token = 'SECRET'"],
        ["a=1,token=SECRET,url=https://h"],
        ["https://x=u:SECRET@h"],
        ["http://h/x#SECRET"],
        ["a=b;c&SECRET"],
        ["--'token'", "SECRET"],
    ],
)
def test_possible_secrets_are_not_shown(words):
    for expected in (
        redact_command([*PY, *words]),
        redact_command([" ".join([*PY, *words])]),
        redact_command(["app", *words]),
    ):
        assert "SECRET" not in expected
        assert "RET" not in expected
        assert "12345" not in expected
        assert expected.startswith(("python t.py", "app"))


def test_code_is_not_shown():
    assert (
        redact_command(["/usr/bin/python3", "-c", "login('SECRET')", "--lr", "3"]) == "/usr/bin/python3 -c ... --lr 3"
    )
    assert redact_command(["bash", "-c", "curl -u me:SECRET host"]) == "bash -c ..."
    assert redact_command(["python -c import x; token='SECRET'"]) == "python -c ...", (
        "a title: the end of the code is unknown"
    )


@pytest.mark.parametrize(
    "line",
    [
        "python -m x --max_tokens 4096 --tokenizer gpt2 --tokenizer=gpt2",
        "python train.py --author Ada --pin-memory --monkey=business --lr 3e-4 --betas 0.9,0.95",
        "torchrun --nproc_per_node=8 train.py --model meta-llama/Llama-3.1-70B-Instruct",
        "/home/ada/.venv/bin/python -u /home/ada/train_large_language_model.py --data /mnt/data-00001-of-00512.bin",
        "python t.py --num_key_value_heads 8 --seed -1 optimizer.lr=0.1 model=llama,optim=adam",
        "vllm serve Qwen/Qwen2.5-7B --port 8000 -tp 2 -O3 -j8",
        "jupyter-lab --port=8888 --no-browser",
        "python -m ipykernel_launcher -f /home/ada/.local/share/jupyter/runtime/kernel-1.json",
    ],
)
def test_plain_arguments_are_shown(line):
    assert redact_command(line.split()) == line


def test_unusual_names():
    assert short_name(["python", "https://me:SECRET@host/x.py"]) == "python x.py"
    assert "SECRET" not in short_name(["python", "/x/https://u:SECRET@h"])
    assert redact_command(["/opt/My Programs/app", "x"]) == "/opt/My Programs/app x"
