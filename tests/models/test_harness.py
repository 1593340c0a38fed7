"""lm-evaluation-harness over rung gives transformers' figures, on tasks made here."""

import json
from pathlib import Path

import pytest
import torch

import rung
from gpt2_models import TEXT, reference, saved, tokenizer_file

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks, one of each kind of request, over sentences of the tests' own text."""
    folder = tmp_path_factory.mktemp("tasks")
    words = TEXT.split()
    rows = [
        {"question": " ".join(words[i : i + 6]), "choices": [words[i + 6], words[i + 9], "castle!"], "answer": i % 3}
        for i in range(0, 24, 3)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [{"text": TEXT[i * 37 : i * 37 + 300]} for i in range(4)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    common = "dataset_path: json\ntest_split: test\n"

    def data(name: str) -> str:
        return f"{common}dataset_kwargs:\n  data_files:\n    test: {folder / name}\n"

    (folder / "choose.yaml").write_text(
        f"task: choose\n{data('rows.jsonl')}output_type: multiple_choice\n"
        'doc_to_text: "{{question}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: answer\n'
        "metric_list:\n  - metric: acc\n  - metric: acc_norm\n"
    )
    (folder / "roll.yaml").write_text(
        f"task: roll\n{data('texts.jsonl')}output_type: loglikelihood_rolling\n"
        'doc_to_text: ""\ndoc_to_target: "{{text}}"\nmetric_list:\n  - metric: word_perplexity\n  - metric: bits_per_byte\n'
    )
    (folder / "write.yaml").write_text(
        f"task: write\n{data('rows.jsonl')}output_type: generate_until\n"
        'doc_to_text: "{{question}}"\ndoc_to_target: "{{choices[0]}}"\n'
        'generation_kwargs:\n  until: ["e"]\n  max_gen_toks: 8\n  do_sample: false\n'
        "metric_list:\n  - metric: exact_match\n"
    )
    return folder


def evaluated(model: object, folder: Path) -> dict:
    import lm_eval
    from lm_eval.tasks import TaskManager

    return lm_eval.simple_evaluate(
        model=model, tasks=["choose", "roll", "write"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0, log_samples=True,
    )  # fmt: skip


def test_three_kinds_of_tasks_have_transformers_results(tasks: Path) -> None:
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    from rung.exchange.harness import HarnessModel

    folder = saved(eos_token_id=399)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file()), eos_token="<|endoftext|>")
    ours = evaluated(HarnessModel(rung.load(folder, dtype="float32", device="cpu")), tasks)
    with torch.inference_mode():
        theirs = evaluated(HFLM(pretrained=reference(folder), tokenizer=tokenizer, max_length=64, batch_size=1), tasks)
    assert ours["results"]["choose"]["acc,none"] == theirs["results"]["choose"]["acc,none"]
    assert ours["results"]["choose"]["acc_norm,none"] == theirs["results"]["choose"]["acc_norm,none"]
    for name in ("word_perplexity,none", "bits_per_byte,none"):
        assert ours["results"]["roll"][name] == pytest.approx(theirs["results"]["roll"][name], rel=1e-5)
    for task in ("choose", "write"):
        for own, other in zip(ours["samples"][task], theirs["samples"][task], strict=True):
            if task == "write":
                assert own["resps"] == other["resps"]
            else:
                for (a, greedy_a), (b, greedy_b) in zip(
                    (r[0] for r in own["resps"]), (r[0] for r in other["resps"]), strict=True
                ):
                    assert a == pytest.approx(b, abs=1e-3) and greedy_a == greedy_b


def test_the_command_line_evaluates(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rung.cli import main

    folder = saved(eos_token_id=399)
    with pytest.raises(SystemExit) as ended:
        main(f"eval choose -m {folder} --include {tasks} --limit 2 --dtype float32 --json".split())
    assert not ended.value.code
    out = capsys.readouterr().out
    assert "acc,none" in json.loads(out[out.index("{") :])["results"]["choose"]
    with pytest.raises(SystemExit) as ended:
        main(["eval", "no_such_task", "-m", str(folder)])
    assert ended.value.code == 2 and "no task 'no_such_task'" in capsys.readouterr().err
