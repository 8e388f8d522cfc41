"""From a corpus to a drafter that works: it learns, resumes as if never interrupted, and refuses clearly."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.engine.conftest import add_tokenizer
from tests.nn.tiny import save_target
from tests.train.toy import Notes, Toy, engine_writer, make_course, run_course, settings, write_corpus
from wager.errors import ConfigError, InputError
from wager.llm import LLM
from wager.nn.models.dflash import check_pair, load_drafter
from wager.records import SamplingParams
from wager.train.drafter import build_drafter, drafter_config
from wager.train.drafter_quality import measure
from wager.train.drafter_training import DrafterTraining, block_sampling_of, drafter_shape, pick_device
from wager.train.teacher import load_teacher, open_target

CPU = torch.device("cpu")
STRICT: dict[str, Any] = {"dtype": "float64", "layout": "out_in", "threads": 1}
SHORT: dict[str, Any] = {"updates": 8, "own_text": 24, "heldout_texts": 2, "heldout_tokens": 8}


@pytest.fixture(scope="module")
def notes() -> Notes:
    return Notes()


@pytest.fixture(scope="module")
def training(toy: Toy, notes: Notes, tmp_path_factory: pytest.TempPathFactory) -> DrafterTraining:
    """A finished run."""
    made = make_course(toy, tmp_path_factory.mktemp("training") / "toy-drafter", notes, evaluate_every=80)
    run_course(made, toy)
    return made


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return found


def test_the_loss_falls_and_reports_come(training: DrafterTraining, notes: Notes) -> None:
    losses = [report.loss for report in notes.reports]
    assert len(losses) == 16 and losses[-1] < losses[0] / 4
    assert [report.update for report in notes.reports if report.evaluation] == [80, 160]
    evaluation = notes.reports[-1].evaluation
    assert evaluation is not None
    assert list(evaluation) == ["tokens per step", *(f"depth {depth}" for depth in range(1, 6))]
    assert ("own_text", 60, 60) in notes.texts and ("heldout", 12, 12) in notes.texts


def test_acceptance_beats_the_untrained_drafter(training: DrafterTraining, toy: Toy) -> None:
    teacher = load_teacher(toy.target, training.shape.layer_ids, CPU)
    config = drafter_config(training.shape, teacher.model.config, training.mask.token_id, training.sampling)
    heldout = training.heldout(lambda _orders: pytest.fail("written again"))
    before = measure(build_drafter(config), teacher, heldout, CPU)
    figures = json.loads((training.out.work / "figures.json").read_text())["measured"]
    assert [own["temperature"] for own in figures] == [0.0, 0.8]
    for own, untrained in zip(figures, before, strict=True):
        assert own["tokens_per_step"] > 1.5 > 1.1 > untrained.tokens_per_step >= 1.0


def test_the_folder_is_a_drafter_for_the_engine(training: DrafterTraining, toy: Toy) -> None:
    """What the engine writes with it is what plain decoding writes, in fewer steps."""
    spec, target = load_drafter(training.out.path).spec, toy.target.spec
    check_pair(spec, target.hidden_size, target.num_layers, target.vocab_size)
    prompts = ["What is 3 plus 4? It is", [{"role": "user", "content": "Say 7 twice."}]]
    params = [
        SamplingParams(max_tokens=40, temperature=temperature, seed=5, ignore_eos=True)
        for temperature in (0.0, 0.8)
    ]
    found = {}
    for drafter in (None, str(training.out.path)):
        llm = LLM(str(toy.target.folder), drafter, "ar" if drafter is None else "fixed:4", **STRICT)
        found[drafter] = [llm.generate(prompts, one) for one in params]
    plain, drafted = found.values()
    for left, right in zip(plain, drafted, strict=True):
        assert [one.token_ids for one in left] == [one.token_ids for one in right]
    assert sum(one.stats.tokens_per_step for one in drafted[0]) / 2 > 1.5


def test_the_card_tells_data_settings_and_figures(training: DrafterTraining) -> None:
    text = (training.out.path / "README.md").read_text(encoding="utf-8")
    figures = json.loads((training.out.work / "figures.json").read_text())
    assert "base_model: target" in text and "# toy-drafter" in text
    assert "| toy.jsonl | 400 |" in text and "MIT (200)" in text and "CC0-1.0 (200)" in text
    assert "| taps | 0-1-2 |" in text and "| heads | 2 |" in text and "| updates | 160 |" in text
    for own in figures["measured"]:
        assert f"| {own['tokens_per_step']:.2f} |" in text
    assert "mask token" in text and "wager 0." in text


def test_an_interrupted_run_ends_as_an_uninterrupted_one(toy: Toy, tmp_path: Path) -> None:
    run_course(make_course(toy, tmp_path / "whole", **SHORT), toy)
    cut = make_course(toy, tmp_path / "cut", **SHORT)
    with pytest.raises(KeyboardInterrupt):
        run_course(cut, toy, stop_after=3)
    assert cut.out.checkpoint.exists() and not (cut.out.path / "model.safetensors").exists()
    notes = Notes()
    again = make_course(toy, tmp_path / "cut", notes, **{**SHORT, "report_every": 1})
    run_course(again, toy)
    assert [report.update for report in notes.reports] == [4, 5, 6, 7, 8]
    assert not notes.texts  # nothing is written a second time
    assert any(line.endswith("checkpoint.pt: continues from update 3") for line in notes.lines)
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())


def test_a_finished_run_is_only_exported_again(toy: Toy, tmp_path: Path) -> None:
    first = run_course(make_course(toy, tmp_path, **SHORT), toy)
    before = weights(tmp_path)
    notes = Notes()
    again = run_course(make_course(toy, tmp_path, notes, **SHORT), toy)
    assert not notes.reports and again == first
    assert all(torch.equal(weight, before[name]) for name, weight in weights(tmp_path).items())


def test_what_an_earlier_run_left_must_fit(toy: Toy, tmp_path: Path) -> None:
    training = make_course(toy, tmp_path, **SHORT)
    run_course(training, toy)
    with pytest.raises(
        InputError,
        match=r"checkpoint\.pt has other settings: lr was 0\.012, now 0\.5 \(--no-resume starts from",
    ):
        make_course(toy, tmp_path, **{**SHORT, "lr": 0.5})
    other = Toy(write_corpus(tmp_path / "toy.jsonl", 90), toy.target)
    with pytest.raises(InputError, match=r"other settings: corpus was toy\.jsonl \w+, now toy\.jsonl \w+ \("):
        make_course(other, tmp_path, **SHORT)
    # What does not touch the weights may change.
    make_course(toy, tmp_path, **{**SHORT, "checkpoint_every": 3, "report_every": 2, "write_rows": 2})
    begun = DrafterTraining(toy.target, [toy.corpus], tmp_path, settings(**{**SHORT, "lr": 0.5}), Notes())
    begun.prepare(resume=False)
    assert not training.out.checkpoint.exists()
    with pytest.raises(InputError, match="resume: there is no checkpoint"):
        begun.prepare(resume=True)
    late = make_course(toy, tmp_path, **{**SHORT, "max_temperature": 0.7})
    with engine_writer(toy) as write:
        with pytest.raises(InputError, match=r"own_text: .*max_temperature was 1\.0, now 0\.7 \(--no-resume"):
            late.rows(write)
        late.prepare(resume=False)
        late.rows(write)
        make_course(toy, tmp_path, **{**SHORT, "max_temperature": 0.7, "heldout_tokens": 5}).heldout(write)


@pytest.mark.parametrize("damage", ["torn", "half"])
def test_a_corrupt_checkpoint_is_named(toy: Toy, tmp_path: Path, damage: str) -> None:
    training = make_course(toy, tmp_path, **SHORT)
    run_course(training, toy)
    whole = training.out.checkpoint.read_bytes()
    training.out.checkpoint.write_bytes(b"torn" if damage == "torn" else whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"checkpoint: .*checkpoint\.pt is not a checkpoint of this run"):
        make_course(toy, tmp_path, **SHORT)


@pytest.mark.gpu
def test_a_course_on_a_gpu(toy: Toy, tmp_path: Path) -> None:
    training = make_course(toy, tmp_path, device="cuda", dtype="bfloat16", evaluate_every=80)
    trained = run_course(training, toy)
    assert all(own.tokens_per_step > 1.4 for own in trained.measured)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_every_supported_target_gets_a_drafter(tmp_path: Path, model_type: str) -> None:
    """Random targets, without mask token: an unused id serves. The corpus itself is learned from."""
    save_target(tmp_path / "target", model_type, vocab_size=360)
    add_tokenizer(tmp_path / "target")
    target = open_target(tmp_path / "target")
    corpus = tmp_path / "words.txt"
    corpus.write_text("The quick brown fox jumps over the lazy dog.\n" * 60, encoding="utf-8")
    short = settings(**{**SHORT, "updates": 2, "own_text": 0, "taps": "auto", "block_size": 4})
    training = DrafterTraining(target, [corpus], tmp_path / "out", short, Notes())
    training.prepare()
    assert training.mask.token_id == target.tokenizer.vocab_size
    toy = Toy(corpus, target)
    run_course(training, toy)
    llm = LLM(str(target.folder), str(tmp_path / "out"), "fixed:3", **STRICT)
    plain = LLM(str(target.folder), None, "ar", **STRICT)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    left, right = (each.generate("The quick", params)[0] for each in (llm, plain))
    assert left.token_ids == right.token_ids and left.stats.drafted > 0


def test_without_own_text_nothing_is_written_to_learn_from(toy: Toy, tmp_path: Path) -> None:
    training = make_course(toy, tmp_path, **{**SHORT, "own_text": 0})
    rows = training.rows(lambda _orders: pytest.fail("written"))
    assert rows.shape[1] == 48 and len(rows) > 50
    assert toy.target.end_id in rows


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"taps": "0-3"}, "taps = '0-3': expected rising layers from 0 to 2"),
        ({"taps": "1-0"}, "taps"),
        ({"heads": 3, "kv_heads": 2}, "kv_heads = 2"),
        ({"head_dim": 5}, "head_dim = 5"),
        ({"mask_token_id": 99999}, "mask_token_id = 99999"),
        ({"row_len": 300}, "row_len = 300: expected rows within the target's context of 256"),
        ({"heldout_tokens": 250}, "heldout_tokens = 250"),
    ],
)
def test_settings_that_do_not_fit_the_target(
    toy: Toy, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as found:
        DrafterTraining(toy.target, [toy.corpus], tmp_path, settings(**changes), Notes())
    assert said in str(found.value)


def test_what_is_left_open_is_the_targets(toy: Toy) -> None:
    open_settings = settings(taps="auto", most_known=40, shortest_block=40)
    shape, spec = drafter_shape(open_settings, toy.target), toy.target.spec
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == spec.heads
    assert shape.intermediate_size == spec.intermediate_size and shape.layer_ids == (1,)
    sampling = block_sampling_of(open_settings)
    assert (sampling.most_known, sampling.shortest) == (5, 6)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == CPU
    with pytest.raises(ConfigError, match="device"):
        pick_device("cuda:0")


@pytest.mark.parametrize(("text", "said"), [("", "holds no text"), ("   \n", "holds no text")])
def test_an_empty_corpus(toy: Toy, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(text, encoding="utf-8")
    training = DrafterTraining(toy.target, [path], tmp_path / "out", settings(), Notes())
    with pytest.raises(InputError, match=f"corpus: {said}"):
        training.prepare()


def test_a_corpus_too_short_for_its_rows(toy: Toy, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("What is 1 plus 2?\n", encoding="utf-8")
    training = DrafterTraining(toy.target, [path], tmp_path / "out", settings(), Notes())
    with pytest.raises(InputError, match="too short for training on one part and evaluation on another"):
        training.prepare()
    two = tmp_path / "two.jsonl"
    two.write_text('{"text": "What is 1 plus 2?"}\n{"text": "It is 3."}', encoding="utf-8")
    training = DrafterTraining(toy.target, [two], tmp_path / "out", settings(own_text=0), Notes())
    training.prepare()
    with pytest.raises(InputError, match=r"corpus: holds \d+ tokens, less than one row of 48"):
        training.rows(lambda _orders: pytest.fail("written"))


def test_a_folder_that_holds_another_model(toy: Toy, tmp_path: Path) -> None:
    training = DrafterTraining(toy.target, [toy.corpus], toy.target.folder, settings(), Notes())
    with pytest.raises(InputError, match=r"out: .* has a model that is not a drafter"):
        training.prepare()
    (tmp_path / "file").write_text("", encoding="utf-8")
    training = DrafterTraining(toy.target, [toy.corpus], tmp_path / "file" / "out", settings(), Notes())
    with pytest.raises(InputError, match="out: cannot write"):
        training.prepare()
