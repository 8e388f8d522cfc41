"""`wager doctor`: every fault is a finding, never a crash."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.layout import ROOT
from tests.nn.tiny import drafter_config, save_drafter, save_target
from wager.cli import main
from wager.cli.doctor_checks import PACKAGES, Finding
from wager.costs import PassTime
from wager.draft import block_folder
from wager.engine import calibrate, cost_file
from wager.errors import ModelError
from wager.nn import kernels
from wager.nn.models import read_spec
from wager.nn.models.dflash import check_pair
from wager.nn.models.dflash_spec import read_spec as read_drafter
from wager.nn.native import build
from wager.pairs import DEMO_FOLDER
from wager.text.tokenizer import read_json
from wager.threads import Threads


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a drafter inside it; without a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_target(folder, "qwen3")
    save_drafter(folder / "drafter")
    return folder


@pytest.fixture(autouse=True)
def nothing_to_fetch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)


class Report:
    def __init__(self, status: int, printed: str) -> None:
        self.status = status
        self.settings: dict[str, Any] = json.loads(printed)["settings"]
        self.card: dict[str, Any] = json.loads(printed)["card"]
        self.checks: dict[str, Finding] = {}
        for check in json.loads(printed)["checks"]:
            self.checks[check["name"]] = Finding(**check)

    def named(self, status: str) -> set[str]:
        return {name for name, finding in self.checks.items() if finding.status == status}


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*args: object) -> Report:
        status = main.exit_status(["doctor", "--json", *map(str, args)])
        return Report(status, capsys.readouterr().out)

    return run


def test_without_a_model_it_checks_the_demo_pair(examine: Any) -> None:
    report = examine()
    assert report.status == 0
    assert report.settings["model.model"] == {"value": "demo", "source": "default"}
    assert {"weights", "tokenizer", "hidden size", "layer ids", "mask token"} <= report.named("ok")
    assert Path(report.settings["model.drafter"]["value"]) == DEMO_FOLDER / "drafter"


def test_the_number_of_threads_is_shown_with_its_source(
    examine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = Threads(3, "the CPU quota of 3.5 cores")
    monkeypatch.setattr("wager.cli.doctor.choose_threads", lambda: limited)
    found = examine().settings["threads"]
    assert found == {"value": 3, "source": "0: the CPU quota of 3.5 cores"}
    assert examine("--threads", "2").settings["threads"] == {"value": 2, "source": "flag --threads"}


def test_the_models_card_is_shown_with_its_sources(
    pair: Path, examine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine().card["efforts"]["source"] == "card demo"
    assert examine(pair).card["thinking"]["source"] == "family qwen3"
    assert examine("--model", "").card == {}
    main.exit_status(["doctor"])
    assert "card.max_tokens" in capsys.readouterr().out


def test_the_models_own_sampling_is_shown(examine: Any, tmp_path: Path) -> None:
    save_target(tmp_path / "own", "qwen3")
    (tmp_path / "own" / "generation_config.json").write_text('{"temperature": 0.4}')
    shown = examine(tmp_path / "own").card["sampling"]
    assert shown == {"value": {"temperature": 0.4}, "source": "generation_config.json"}


def test_the_demo_pairs_second_drafter_fits_too(examine: Any) -> None:
    report = examine("--drafter", "demo/chain")
    assert report.status == 0
    assert report.checks["drafter folder"].detail == str(DEMO_FOLDER / "chain")
    assert "drafter model" in report.named("ok")


def test_a_missing_demo_pair_is_a_failure(
    examine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("wager.pairs.DEMO_FOLDER", tmp_path)
    report = examine()
    assert report.named("fail") == {"model"} and "is part of Wager" in report.checks["model"].detail


def test_with_an_empty_model_it_checks_the_machine(examine: Any) -> None:
    report = examine("--model", "")
    assert report.status == 0
    assert {"python", "torch", "device", "policy", "model"} <= report.named("ok")
    assert report.settings["model.device"]["source"].startswith("auto: ")
    assert report.settings["cache.page_size"]["source"] == "default"


def test_the_oldest_packages_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'"{name}>={oldest}' in project for name, oldest in PACKAGES.items())


def test_an_old_or_absent_package_is_a_failure(monkeypatch: pytest.MonkeyPatch, examine: Any) -> None:
    monkeypatch.setitem(PACKAGES, "numpy", "99.0")
    monkeypatch.setitem(PACKAGES, "no-such-package", "1.0")
    report = examine()
    assert report.status == 2
    assert report.named("fail") == {"numpy", "no-such-package"}


def test_a_whole_pair_fits(pair: Path, examine: Any) -> None:
    report = examine(pair)
    fit = {
        "hidden size",
        "layer ids",
        "target layers",
        "vocabulary",
        "mask token",
        "rope theta",
        "block size",
    }
    assert fit <= report.named("ok")
    assert report.named("warn") == {"tokenizer"}
    assert report.status == 1
    assert report.settings["model.drafter"]["value"] == str(pair / "drafter")
    assert report.settings["scheduler.max_context"] == {"value": 512, "source": f"0: {pair / 'config.json'}"}
    assert report.settings["model.model"]["source"] == "flag --model"


MISFITS = [
    ({"hidden_size": 64}, "hidden size", "fail"),
    ({"num_target_layers": 5}, "target layers", "fail"),
    ({"dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 3]}}, "layer ids", "fail"),
    ({"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0, 2]}}, "mask token", "fail"),
    ({"vocab_size": 98}, "vocabulary", "warn"),
    ({"rope_theta": 1e6}, "rope theta", "warn"),
    ({"rope_theta": None}, "drafter config", "fail"),
    ({"dflash_config": {"target_layer_ids": [0, 2]}}, "drafter config", "fail"),
    ({"dflash_config": {"mask_token_id": 96}}, "layer ids listed", "warn"),
]


@pytest.mark.parametrize(("changes", "name", "status"), MISFITS)
def test_a_drafter_that_does_not_fit_is_reported(
    changes: dict[str, Any], name: str, status: str, pair: Path, tmp_path: Path, examine: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(drafter_config(**changes)), encoding="utf-8")
    report = examine(pair, "--drafter", tmp_path)
    assert report.checks[name].status == status
    assert report.named("fail") - {"drafter weights"} == ({name} if status == "fail" else set())


@pytest.mark.parametrize("changes", [changes for changes, name, _ in MISFITS if name != "drafter config"])
def test_doctor_and_the_loader_agree(changes: dict[str, Any], pair: Path) -> None:
    target = read_spec(read_json(pair / "config.json"))
    values = drafter_config(**changes)
    spec = read_drafter(values)
    failed = any(one.status == "fail" for one in block_folder.check(values, target))
    try:
        check_pair(spec, target.hidden_size, target.num_layers, target.vocab_size)
    except ModelError:
        assert failed
    else:
        assert not failed


def test_a_chain_drafter_is_compared_by_vocabulary(pair: Path, examine: Any) -> None:
    report = examine(pair, "--drafter", pair)
    assert {"drafter model", "vocabulary"} <= report.named("ok")


def test_a_requested_drafter_that_is_missing_is_a_failure(pair: Path, examine: Any) -> None:
    report = examine(pair, "--drafter", "z-lab/Qwen3-8B-DFlash-b16")
    assert report.status == 2 and report.named("fail") == {"drafter"}
    assert examine(pair, "--drafter", "none").checks["drafter"].detail == "none"


def test_a_published_model_that_is_not_downloaded_is_a_warning(examine: Any) -> None:
    report = examine("Qwen/Qwen3-8B")
    assert report.status == 1
    assert report.named("warn") == {"model", "drafter"}
    assert "z-lab/Qwen3-8B-DFlash-b16" in report.checks["drafter"].detail
    assert examine("nobody/nothing").named("fail") == {"model"}


@pytest.mark.parametrize(
    ("file", "content", "failed"),
    [
        ("config.json", b"{", "model config"),
        ("config.json", b"[]", "model config"),
        ("config.json", b'{"model_type": "mamba"}', "model config"),
        ("config.json", None, "model config"),
        ("model.safetensors", b"broken", "weights"),
        ("model.safetensors", None, "weights"),
        ("tokenizer.json", b"{", "tokenizer"),
    ],
)
def test_a_broken_folder_is_reported(
    file: str, content: bytes | None, failed: str, pair: Path, tmp_path: Path, examine: Any
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((pair / name).read_bytes())
    (tmp_path / file).unlink(missing_ok=True)
    if content is not None:
        (tmp_path / file).write_bytes(content)
    report = examine(tmp_path)
    assert report.status == 2
    assert report.named("fail") == {failed}


def test_a_bad_policy_and_a_missing_device_are_failures(examine: Any) -> None:
    assert examine("--policy", "best").named("fail") == {"policy"}
    import torch

    if not torch.cuda.is_available():
        assert examine("--device", "cuda").named("fail") == {"device"}


def test_weights_that_the_device_cannot_run_are_a_failure(
    examine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu = ("--model", "", "--device", "cpu", "--weights")
    assert examine(*on_cpu, "int8").checks["rounding"].detail == "int8"
    report = examine(*on_cpu, "int4")
    assert report.status == 2 and report.checks["rounding"].detail.startswith("weights = 'int4': ")
    monkeypatch.setattr(kernels, "has_kernels", lambda device: True)
    assert examine(*on_cpu, "int4").checks["rounding"].detail == "int4 in groups of 64, head int8"
    assert examine(*on_cpu, "int4", "--kernels", "off").status == 2


def test_the_printed_report(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.exit_status(["doctor", str(pair), "--profile", "low-memory"]) == 1
    out = capsys.readouterr().out
    assert "WARN  tokenizer" in out
    assert any("cache.page_size" in line and "profile low-memory" in line for line in out.splitlines())


def test_stored_calibrations_are_shown_with_their_age(
    pair: Path, examine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_file, "folder", lambda: tmp_path / "costs")
    assert "none yet" in examine(pair).checks["calibration"].detail
    shape = calibrate.shape_digest(read_spec(read_json(pair / "config.json")))
    key = {"device": calibrate.device_name("cpu"), "shape": shape, "dtype": "float32", "passes": "torch"}
    made_s = time.time() - 3 * 3600
    cost_file.write(cost_file.Calibration(key, (PassTime(1, 1, 0, 5.0),), (), made_s))
    cost_file.write(cost_file.Calibration(key | {"shape": "another"}, (), (), made_s))
    found = examine(pair).checks["calibration"]
    assert (found.status, found.source) == ("ok", "3 hours old")
    assert "1 passes" in found.detail and "float32" in found.detail
    assert "learned" in examine(pair, "--no-calibrate").checks["calibration"].detail


def test_the_implementation_of_passes_is_shown_with_its_reason(
    pair: Path, examine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "compiler", lambda: ("c++",))
    monkeypatch.setattr(build, "find", lambda: build.Built(None, "not built yet"))

    def passes(*flags: str) -> tuple[str, str]:
        found = examine(pair, "--device", "cpu", *flags).checks["passes"]
        return found.detail, found.source

    assert passes()[0] == "plain torch until the native passes are built"
    assert passes("--native", "off") == ("plain torch", "not asked for")
    assert "float64" in passes("--native", "on", "--dtype", "float64")[1]
    assert passes("--native", "on")[0] == "plain torch until the native passes are built"
    with monkeypatch.context() as patch:
        patch.setattr("wager.nn.native.loader.MAX_WAITING_BYTES", 1000)
        assert passes("--native", "on")[0].endswith("and the model is restarted")
    monkeypatch.setattr(build, "find", lambda: build.Built(tmp_path, "built before"))
    assert passes("--native", "on") == ("native", "built before")
    monkeypatch.setattr(build, "find", lambda: build.Built(None, "no C++ compiler was found"))
    monkeypatch.setattr(build, "compiler", lambda: None)
    assert passes("--native", "on") == ("plain torch", "no C++ compiler was found")
