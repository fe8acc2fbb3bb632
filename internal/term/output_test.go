package term

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

func TestYAMLSaysWhatJSONSays(t *testing.T) {
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		kinds := []*rapid.Generator[any]{
			rapid.String().AsAny(), rapid.Int64().AsAny(), rapid.Float64().AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil),
			rapid.SampledFrom([]string{"", "yes", "null", "0x10", "1e3", "~", "- a", "a: b", "#", "\x7f", "\u0085", " x ", "\ta\nb", "2026-11-22", "<<"}).AsAny(),
		}
		if depth > 0 {
			inner := rapid.Deferred(func() *rapid.Generator[any] { return value(depth - 1) })
			kinds = append(kinds, rapid.SliceOfN(inner, 0, 4).AsAny(), rapid.MapOfN(rapid.String(), inner, 0, 4).AsAny())
		}
		return rapid.OneOf(kinds...)
	}
	rapid.Check(t, func(t *rapid.T) {
		var asJSON, asYAML bytes.Buffer
		data := value(3).Draw(t, "data")
		if err := (&Output{Form: formJSON}).Document(&asJSON, data); err != nil {
			t.Fatal(err)
		}
		if err := (&Output{Form: FormYAML}).Document(&asYAML, data); err != nil {
			t.Fatal(err)
		}
		var read any
		if err := yaml.Unmarshal(asYAML.Bytes(), &read); err != nil {
			t.Fatalf("%v in\n%s", err, asYAML.String())
		}
		again, err := json.Marshal(read)
		if err != nil {
			t.Fatal(err)
		}
		var one, two any
		if json.Unmarshal(asJSON.Bytes(), &one) != nil || json.Unmarshal(again, &two) != nil {
			t.Fatal("one of them is no JSON")
		}
		if !reflect.DeepEqual(one, two) {
			t.Fatalf("JSON says %v, YAML %v:\n%s", one, two, asYAML.String())
		}
	})
}

func TestYAMLKeepsTheOrderOfKeysAndTheDigitsOfNumbers(t *testing.T) {
	var b bytes.Buffer
	data := json.RawMessage(`{"z":1795223511284000999,"a":[],"m":{"y":{},"b":[1.50,"1.50"]}}`)
	if err := (&Output{Form: FormYAML}).Document(&b, data); err != nil {
		t.Fatal(err)
	}
	const want = "z: 1795223511284000999\na: []\nm:\n  y: {}\n  b:\n    - 1.50\n    - \"1.50\"\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestAlign(t *testing.T) {
	for text, want := range map[string]string{
		"NAME\tVERDICT\tTEXT\nα\tok\tfine\nlonger\tfail\tnot fine\nno cells here\na\tb\n": "NAME    VERDICT  TEXT\nα       ok       fine\nlonger  fail     not fine\nno cells here\na  b\n",
		"\t\tempty\nfull\t\t\n":                               "        empty\nfull\n",
		"worker\t\x1b[2J\x1b]0;owned\a\u009b31mred\r\b\x7f\n": "worker  [2J]0;owned31mred\n",
	} {
		if got := Align(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
