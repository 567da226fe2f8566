// What the test of the dashboard's modules computes in the browser.
async () => {
    const [{ quantile, readMetrics }, { csv }, { merged, bare }, { EventParser }, { moved }, format] = await Promise.all(
        ["metrics", "csv", "merge", "sse", "pages/aliases", "format"].map((name) => import(`./js/${name}.js`)));
    const said = 'a_bucket{le="1"} 3\ntrunkline_request_seconds_bucket{model="a\\"b,{}",route="chat",le="0.5"} 4\n'
        + 'trunkline_request_seconds_bucket{model="a\\"b,{}",route="chat",le="1"} 8\n'
        + 'trunkline_request_seconds_bucket{model="a\\"b,{}",route="chat",le="+Inf"} 8\n';
    const buckets = readMetrics(said, 0).buckets.get('trunkline_request_seconds a"b,{}');
    const parser = new EventParser();
    const events = ["id: a-1\nevent: del", 'ta\ndata: {"a":\ndata: 1}\r\n\r\n: hm\n\nda', "ta: 2\n\n"].flatMap((piece) => parser.feed(piece));
    const patched = merged(bare({ a: { b: 1, c: 2 }, d: 3 }), JSON.parse('{"a":{"b":null,"e":{"f":1}},"d":[null],"__proto__":{"x":1}}'));
    return {
        quantiles: [quantile(buckets, 0.5), quantile(buckets, 0.75), quantile(new Map(), 0.5)],
        csv: csv([["a,b", 1.5, '=1+1', 'say "x"'], ["-2", -2, null, "\n"]]),
        patched: JSON.stringify(patched), polluted: {}.x,
        events: events.map(({ id, event, data }) => [id, event, data]),
        moved: [moved([95, 5], 1, 20), moved([50, 30, 20], 0, 0), moved([100, 0], 0, 40)],
        words: [format.seconds(0.0123), format.seconds(7200), format.bytes(85899345920), format.percent(0.053), format.count(1234567), format.count(NaN)],
    };
}
