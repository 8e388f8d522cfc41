"""The grown pair end to end, one request at a time: all policies and other decoders in one process.

    python -m bench.gpu.pair [--limit 2] [--max-tokens 128] [--only wager] [--temperatures 0,0.8]

Uses the shipped prompts by kind, greedy and sampled. Plain decoding (`ar`) runs before and after every small
group of contenders (A B B A), and speed-ups are relative to it. Peers run over the same weights with fewer
tokens, because they are slow; `auto` runs among them. The compiled peer comes last, because compiling takes
as long as all the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.gpu.dflash_loop import NAME as LOOP
from bench.gpu.grown import BenchSession
from bench.gpu.peers import COMPILED, EAGER, PEERS, Peers
from bench.gpu.race import Race, speed_ratio, table
from bench.gpu.script import Script, main
from wager.bench.figures import Summary, is_fixed, summarise
from wager.bench.plan import BASELINE, RunOptions
from wager.bench.runs import Contender, Encoded, PolicyContender, encode
from wager.bench.suites import first_of_each_kind, kinds_of

CHAINS = tuple(f"fixed:{count}" for count in (1, 2, 3, 4, 6, 8, 12, 15))
TREES = ("tree:16", "tree:32", "tree:64")
AUTO = "auto"


@dataclass(frozen=True)
class Options:
    """Contenders and sizes. No prompt begins after `seconds`."""

    only: tuple[str, ...] = ("wager", "peers")
    limit: int = 1
    max_tokens: int = 96
    peer_tokens: int = 32
    temperatures: tuple[float, ...] = (0.0, 0.8)
    policies: tuple[str, ...] = (AUTO, *CHAINS, *TREES)
    sampled_policies: tuple[str, ...] = (AUTO, "fixed:4", "fixed:15", "tree:16")
    peers: tuple[str, ...] = PEERS
    sampled_peers: tuple[str, ...] = (EAGER, LOOP)
    seconds: float = 240.0
    seed: int = 0


class PairRaces:
    """The races of a run, the most important first."""

    def __init__(self, session: BenchSession, options: Options) -> None:
        self.session, self.options = session, options
        self.peers = Peers(session)
        self._policies: dict[tuple[float, str], PolicyContender] = {}
        chosen = first_of_each_kind(session.prompts, options.limit)
        self.prompts = self._encoded(chosen)
        # The last prompt of every kind is used for the warm-up only.
        others = [[one for one in session.prompts if one.kind == kind][-1] for kind in kinds_of(chosen)]
        self.warm = self._encoded(others)

    def _encoded(self, prompts: Sequence[Any]) -> list[Encoded]:
        return encode(self.session.llm, prompts, max(self.options.max_tokens, self.options.peer_tokens))

    def races(self) -> Iterator[Race]:
        """Makes one race after the other, so that the peers' models are loaded when the first peer runs."""
        options = self.options
        for temperature in options.temperatures:
            label = "greedy" if temperature == 0.0 else f"T={temperature:g}"
            if "wager" in options.only:
                policies = options.policies if temperature == 0.0 else options.sampled_policies
                yield self._race(label, temperature, policies, (), options.max_tokens)
            names = options.peers if temperature == 0.0 else options.sampled_peers
            names = tuple(name for name in names if name != COMPILED)
            if "peers" in options.only and names:
                yield self._race(f"{label} peers", temperature, (AUTO,), names, options.peer_tokens)
        if "peers" in options.only and COMPILED in options.peers and 0.0 in options.temperatures:
            yield self._race("greedy compiled", 0.0, (AUTO,), (COMPILED,), options.peer_tokens)

    def _race(
        self, label: str, temperature: float, policies: Sequence[str], peers: Sequence[str], tokens: int
    ) -> Race:
        contenders: dict[str, Contender] = {}
        warm: dict[str, Sequence[Encoded]] = {}
        for name in (BASELINE, *policies):
            contenders[name] = self._policy(temperature, name)
            warm[name] = self.warm
        for name in peers:
            with self.session.case(f"{label}: {name}"):
                contenders[name] = self.peers.make(name, greedy=temperature == 0.0)
            # A static cache has the length of the longest answer so far, and a longer one compiles again.
            longest = max(self.prompts, key=lambda one: len(one.token_ids))
            warm[name] = [longest, longest] if name == COMPILED else self.warm[:1]
        return Race(label, contenders, self.prompts, warm, RunOptions(tokens, temperature, self.options.seed))

    def _policy(self, temperature: float, name: str) -> PolicyContender:
        """A policy's contender, shared by all races at a temperature, so that it goes on learning."""
        key = (temperature, name)
        if key not in self._policies:
            self._policies[key] = PolicyContender(self.session.llm, name)
        return self._policies[key]


def auto_ratios(summaries: dict[str, Summary]) -> dict[str, Any]:
    """Ratios of `auto` to every other contender, after the first token and over whole requests."""
    found: dict[str, Any] = {}
    for label, summary in summaries.items():
        if AUTO not in summary.contenders or not summary.kinds:
            continue
        rivals = [name for name in summary.contenders if name != AUTO]
        found[label] = {f"auto over {name}": speed_ratio(summary, AUTO, name) for name in rivals}
        fixed = [name for name in rivals if is_fixed(name) or name in TREES]
        means = {name: summary.overall_decode[name] for name in fixed}
        if means:
            found[label]["best fixed on the mean"] = max(means, key=means.__getitem__)
        slowest = [cell.mean for kind in summary.kinds if (cell := summary.cells[AUTO, kind].decode_speedup)]
        found[label]["slowest kind of auto"] = min(slowest, default=None)
    return found


def run(session: BenchSession, options: Options) -> None:
    deadline = session.elapsed + options.seconds
    pair = PairRaces(session, options)
    described = {"options": asdict(options), "peers": pair.peers.described(), "notes": engine_notes(session)}
    races: list[Race] = []
    summaries: dict[str, Summary] = {}

    def save() -> None:
        for race in races:
            if race.measured.runs:
                summaries[race.label] = summarise(race.measured)
        data = {race.label: race.as_dict() for race in races if race.measured.runs}
        session.save("pair", described, data | {"bars": auto_ratios(summaries)})

    for race in pair.races():
        if session.elapsed > deadline:
            session.say(f"{race.label}: left out, the time is up")
            break
        races.append(race)
        with session.case(race.label):
            race.run(session, deadline, save)
        save()
        if race.measured.runs:
            print("\n".join([race.label, *table(summaries[race.label])]), flush=True)
    for label, values in auto_ratios(summaries).items():
        session.say(f"{label}: " + "; ".join(f"{name} {_short(value)}" for name, value in values.items()))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " / ".join(f"{one:.2f}" for one in value.values())
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def engine_notes(session: BenchSession) -> dict[str, object]:
    """How the engine runs here, for the result file."""
    wanted = ("device", "dtype", "passes", "layout", "drafter", "drafters", "max_context", "kv_pages")
    return {name: session.llm.notes.get(name) for name in wanted}


TINY: dict[str, Any] = {
    "max_tokens": 8,
    "peer_tokens": 6,
    "policies": (AUTO, "fixed:15", "tree:16"),
    "sampled_policies": (AUTO, "fixed:15"),
    "seconds": 600.0,
}
SCRIPT = Script("pair", __doc__ or "", Options, TINY, run)

if __name__ == "__main__":
    main(SCRIPT)
