// A PNG in base64 -> the same picture with a palette, in base64. Colours that are there most often
// stay as they are, the others become the nearest of these.
async (given) => {
  const MOST = 128;
  const blob = await (await fetch(`data:image/png;base64,${given}`)).blob();
  const bitmap = await createImageBitmap(blob);
  const { width, height } = bitmap;
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const chosen = [...counts].sort((a, b) => b[1] - a[1]).slice(0, MOST).map(([pixel]) => pixel);
  const parts = (pixel) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
  const nearest = new Map(chosen.map((pixel, at) => [pixel, at]));
  const index = (pixel) => {
    if (nearest.has(pixel)) return nearest.get(pixel);
    const [r, g, b] = parts(pixel);
    let best = 0;
    let least = Infinity;
    chosen.forEach((other, at) => {
      const [x, y, z] = parts(other);
      const far = 2 * (r - x) ** 2 + 4 * (g - y) ** 2 + 3 * (b - z) ** 2;
      if (far < least) [best, least] = [at, far];
    });
    nearest.set(pixel, best);
    return best;
  };
  const lines = new Uint8Array((width + 1) * height);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) lines[y * (width + 1) + 1 + x] = index(pixels[y * width + x]);
  const stream = new Blob([lines]).stream().pipeThrough(new CompressionStream("deflate"));
  const body = new Uint8Array(await new Response(stream).arrayBuffer());
  const table = Array.from({ length: 256 }, (_, n) => {
    let c = n;
    for (let k = 0; k < 8; k++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
    return c >>> 0;
  });
  const chunk = (name, data) => {
    const made = new Uint8Array(data.length + 12);
    const view = new DataView(made.buffer);
    view.setUint32(0, data.length);
    made.set([...name].map((char) => char.charCodeAt(0)), 4);
    made.set(data, 8);
    let crc = 0xffffffff;
    for (const byte of made.subarray(4, data.length + 8)) crc = table[(crc ^ byte) & 255] ^ (crc >>> 8);
    view.setUint32(data.length + 8, (crc ^ 0xffffffff) >>> 0);
    return made;
  };
  const head = new Uint8Array(13);
  new DataView(head.buffer).setUint32(0, width);
  new DataView(head.buffer).setUint32(4, height);
  head.set([8, 3, 0, 0, 0], 8);
  const png = [
    new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10]),
    chunk("IHDR", head),
    chunk("PLTE", new Uint8Array(chosen.flatMap(parts))),
    chunk("IDAT", body),
    chunk("IEND", new Uint8Array(0)),
  ];
  const all = new Uint8Array(await new Blob(png).arrayBuffer());
  let text = "";
  for (let at = 0; at < all.length; at += 8192) text += String.fromCharCode(...all.subarray(at, at + 8192));
  return btoa(text);
}
