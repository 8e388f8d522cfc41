// Reads server-sent events from a fetch response. Unlike EventSource, fetch can send an API key and a body, and the
// caller learns how the stream ended. It does not know what the events mean.

const LONGEST_EVENT = 4_000_000;

// Yields the data of each event as text, until the stream ends.
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      buffer += decoder.decode(value, { stream: true }).replaceAll("\r", "");
      let end;
      while ((end = buffer.indexOf("\n\n")) >= 0) {
        const data = dataOf(buffer.slice(0, end));
        buffer = buffer.slice(end + 2);
        if (data !== null) yield data;
      }
      if (buffer.length > LONGEST_EVENT) throw new Error("an event of the stream is too long");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n") : null;
}
