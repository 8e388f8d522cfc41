// Example prompts. They fit the training data of the demo pair (Python, worked sums, old novels, chat), and any model
// can answer them. `kind` says how the prompt is sent; `thinking` is a budget in tokens.

import { el } from "./dom.js";

export const EXAMPLES = [
  {
    title: "Python",
    about: "continues a file",
    kind: "text",
    prompt: `# file: graphs/shortest_path.py
from collections import deque


def shortest_path(graph: dict[str, list[str]], start: str, goal: str) -> list[str]:
    """
    Find a path with the fewest edges by breadth-first search.

    >>> graph = {"A": ["B", "C"], "B": ["D"], "C": ["D"], "D": []}
    >>> shortest_path(graph, "A", "D")
    ['A', 'B', 'D']
    """
    if start not in graph:
        raise KeyError(start)`,
  },
  {
    title: "A sum",
    about: "thinks for at most 64 tokens",
    kind: "chat",
    thinking: 64,
    prompt:
      "Mira reads 35 pages of a book on Monday and twice as many on Tuesday. On Wednesday she reads 15 pages fewer " +
      "than on Tuesday. The book has 240 pages in all. How many pages does she still have to read after Wednesday?",
  },
  {
    title: "A novel",
    about: "continues a chapter",
    kind: "text",
    prompt: `I

The House on the Quay

Late in the autumn of that year, when the last of the herring boats had come in and the nets were hung to dry along the sea wall, a stranger took the upper rooms of the house on the quay. He brought with him one trunk, a violin in a black case, and a dog that would obey nobody but himself. Mrs. Harrow, who let the rooms, said`,
  },
  {
    title: "A question",
    about: "answers in a chat",
    kind: "chat",
    prompt:
      "Can you explain the difference between a virus and a bacterium in simple words? My daughter is nine years old. " +
      "Please use an example she can understand.",
  },
];

export function exampleCards(onPick) {
  const card = (example) =>
    el(
      "button",
      { type: "button", class: "example", onclick: () => onPick(example) },
      el("b", {}, example.title),
      el("span", {}, example.about),
    );
  return el("div", { class: "examples" }, ...EXAMPLES.map(card));
}
