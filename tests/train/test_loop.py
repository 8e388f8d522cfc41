"""The training loop: it learns, it resumes as if never interrupted, and it says what is wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from wager.errors import InputError
from wager.train.loop import PackedBatches, Progress, TrainConfig, Trainer, progress_lines

ROWS = np.random.default_rng(0).integers(0, 11, (23, 6)).astype(np.int32)
CONFIG = TrainConfig(updates=12, batch_rows=4, lr=0.02, warm_up=3, seed=5, checkpoint_every=5, report_every=3)
CPU = torch.device("cpu")


class Interrupted(Exception):
    """The machine went away."""


class Net(nn.Module):
    """An embedding, a matrix among `layers` and a head, so that every kind of parameter is there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8)])
        self.head = nn.Linear(8, 11)

    def loss(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        hidden = self.layers[0](self.embedding(tokens[:, :-1])).tanh()
        kept = torch.rand(hidden.shape, generator=generator) < 0.9
        return nn.functional.cross_entropy(self.head(hidden * kept).flatten(0, 1), tokens[:, 1:].flatten())


def packed(rows: npt.NDArray[np.int32], config: TrainConfig) -> PackedBatches:
    return PackedBatches(rows, config.batch_rows, config.seed, CPU)


def train(net: Net, config: TrainConfig = CONFIG, checkpoint: Path | None = None, stop_at: int = 0) -> float:
    """Train; with `stop_at`, that call of the loss fails."""
    calls = 0

    def loss(tokens: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise Interrupted
        return net.loss(tokens, generator)

    return Trainer(net, loss, packed(ROWS, config), config, CPU, checkpoint=checkpoint).run()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("stop_at", [6, 8, 12])
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path, optimizer: str, stop_at: int) -> None:
    config = replace(CONFIG, optimizer=optimizer)
    whole = Net()
    want = train(whole, config)
    path = tmp_path / "new" / "state.pt"
    with pytest.raises(Interrupted):
        train(Net(), config, path, stop_at)
    resumed = Net()
    assert train(resumed, config, path) == want
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    assert [found.name for found in path.parent.iterdir()] == ["state.pt"]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    config = replace(CONFIG, checkpoint_every=6)
    want = train(Net(), config, tmp_path / "state.pt")
    assert train(Net(), config, tmp_path / "state.pt", stop_at=1) == want


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_loss_falls(optimizer: str) -> None:
    net, told = Net(), list[Progress]()
    rows = np.tile(np.arange(6, dtype=np.int32), (8, 1))
    config = TrainConfig(updates=60, batch_rows=4, lr=0.02, warm_up=5, report_every=20, optimizer=optimizer)
    last = Trainer(net, net.loss, packed(rows, config), config, CPU, told.append).run()
    assert [progress.update for progress in told] == [20, 40, 60]
    assert last == told[-1].loss < told[0].loss / 2
    assert told[-1].lr < told[0].lr


def test_a_corrupt_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"torn")
    with pytest.raises(InputError, match=r"checkpoint: .*state\.pt is not a checkpoint of this run"):
        train(Net(), checkpoint=path)
    train(Net(), checkpoint=tmp_path / "good.pt")
    whole = (tmp_path / "good.pt").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="not a checkpoint"):
        train(Net(), checkpoint=path)
    torch.save({"module": {}}, path)
    with pytest.raises(InputError, match="not a checkpoint"):
        train(Net(), checkpoint=path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    train(Net(), checkpoint=tmp_path / "state.pt")
    with pytest.raises(InputError, match="not a checkpoint"):
        train(Net(), replace(CONFIG, optimizer="muon"), tmp_path / "state.pt")


def test_a_checkpoint_of_other_settings_names_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"

    def run(settings: dict[str, object]) -> None:
        net = Net()
        Trainer(net, net.loss, packed(ROWS, CONFIG), CONFIG, CPU, checkpoint=path, settings=settings).run()

    run({"lr": 0.02, "layers": 2})
    run({"layers": 2, "lr": 0.02})
    with pytest.raises(InputError, match=r"state\.pt has other settings: lr was 0\.02, now 0\.1$"):
        run({"lr": 0.1, "layers": 2})
    with pytest.raises(InputError, match=r"layers was 2, now unset, seed was unset, now 1"):
        run({"lr": 0.02, "seed": 1})


@pytest.mark.parametrize("every", [0, 5])
def test_a_run_that_is_stopped_goes_on_as_if_it_was_not(tmp_path: Path, every: int) -> None:
    config = replace(CONFIG, checkpoint_every=every)
    whole, cut, resumed = Net(), Net(), Net()
    want = Trainer(whole, whole.loss, packed(ROWS, config), config, CPU).run()
    path, asked = tmp_path / "state.pt", iter([False, False, False, True])
    with pytest.raises(KeyboardInterrupt):
        Trainer(
            cut, cut.loss, packed(ROWS, config), config, CPU, checkpoint=path, stop=lambda: next(asked)
        ).run()
    assert Trainer(resumed, resumed.loss, packed(ROWS, config), config, CPU, checkpoint=path).run() == want
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name


def test_evaluation_does_not_wait_for_a_report() -> None:
    net, told = Net(), list[Progress]()
    config = replace(CONFIG, evaluate_every=5, report_every=6)
    Trainer(net, net.loss, packed(ROWS, config), config, CPU, told.append, lambda: {"acceptance": 0.5}).run()
    assert [(one.update, one.evaluation is not None) for one in told] == [
        (5, True),
        (6, False),
        (10, True),
        (12, True),
    ]


def test_an_empty_corpus_and_a_lost_loss_are_named() -> None:
    net = Net()
    with pytest.raises(InputError, match="corpus: has no rows"):
        Trainer(net, net.loss, packed(ROWS[:0], CONFIG), CONFIG, CPU).run()
    with pytest.raises(InputError, match="lr: the loss became nan at update 3"):
        Trainer(
            net, lambda tokens, g: net.loss(tokens, g) * torch.nan, packed(ROWS, CONFIG), CONFIG, CPU
        ).run()


def test_time_ends_training() -> None:
    net = Net()
    before = {name: weight.clone() for name, weight in net.state_dict().items()}
    train(net, replace(CONFIG, max_seconds=1e-12))
    assert all(torch.equal(weight, before[name]) for name, weight in net.state_dict().items())


def test_batches_are_a_function_of_seed_and_update() -> None:
    batches = PackedBatches(ROWS, 4, 3, CPU)
    in_order = [batches.at(update) for update in range(12)]
    again = PackedBatches(ROWS, 4, 3, CPU)
    for update in (11, 0, 7, 4):
        assert torch.equal(again.at(update), in_order[update])
    numbered = PackedBatches(np.arange(20, dtype=np.int32)[:, None], 4, 3, CPU)
    epoch = torch.cat([numbered.at(update) for update in range(5)])
    assert sorted(epoch[:, 0].tolist()) == list(range(20))
    assert PackedBatches(ROWS[:2], 4, 0, CPU).at(9).shape == (2, 6)


def test_evaluation_is_reported_when_it_is_due() -> None:
    net, told = Net(), list[Progress]()
    config = replace(CONFIG, evaluate_every=6)
    Trainer(net, net.loss, packed(ROWS, config), config, CPU, told.append, lambda: {"acceptance": 0.5}).run()
    assert [progress.evaluation is not None for progress in told] == [False, True, False, True]
    lines = list(progress_lines(told[1]))
    assert lines[0].startswith("update 6/12  loss ") and lines[1].strip() == "acceptance 0.500"
