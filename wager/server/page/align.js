// Finds, for text as it is shown, the tokens it came from. The shown text is the tokens' text without marks such as
// </think>, sometimes trimmed, sometimes held back for a while; tokens are never later than their text.
// Pure: no elements, no network.

const RESYNC_REACH = 24;

export class Aligner {
  constructor() {
    this.queue = [];
    // The last token that had no text of its own, as the first bytes of a character have none.
    this.textless = null;
  }

  add(tokens) {
    for (const token of tokens) this.queue.push({ token, rest: token.text ?? "" });
  }

  // Pieces {token, text, hidden} for newly shown text. A hidden piece is a token that was passed over.
  take(text) {
    const pieces = [];
    while (text) text = this.#next(text, pieces);
    return pieces;
  }

  // Whatever was never shown: marks at the very end.
  flush() {
    const pieces = this.queue.map(({ token }) => ({ token, text: token.text ?? "", hidden: true }));
    this.queue = [];
    return pieces;
  }

  #next(text, pieces) {
    const head = this.queue[0];
    if (!head) return this.#gap(text, text.length, pieces);
    const { token, rest } = head;
    if (rest === "" || rest.includes("\ufffd")) {
      this.textless = token;
      return this.#pass(pieces, rest, text);
    }
    if (text.startsWith(rest)) return this.#show(rest.length, true, text, pieces);
    if (rest.startsWith(text)) return this.#show(text.length, false, text, pieces);
    if (rest !== token.text) return this.#drop(text);
    const bare = rest.trimStart();
    if (bare && bare !== rest && (text.startsWith(bare) || bare.startsWith(text))) {
      head.rest = bare;
      return text;
    }
    const at = rest.trim().length > 1 ? text.indexOf(rest) : -1;
    if (at > 0 && at <= RESYNC_REACH) return this.#gap(text, at, pieces);
    return this.#pass(pieces, rest, text);
  }

  #show(length, whole, text, pieces) {
    const head = this.queue[0];
    pieces.push({ token: head.token, text: text.slice(0, length), hidden: false });
    if (whole) this.queue.shift();
    else head.rest = head.rest.slice(length);
    this.textless = null;
    return text.slice(length);
  }

  #gap(text, length, pieces) {
    pieces.push({ token: this.textless, text: text.slice(0, length), hidden: false });
    this.textless = null;
    return text.slice(length);
  }

  #pass(pieces, rest, text) {
    const { token } = this.queue.shift();
    pieces.push({ token, text: rest, hidden: true });
    return text;
  }

  #drop(text) {
    this.queue.shift();
    return text;
  }
}
