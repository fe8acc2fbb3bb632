package forge

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestDecodeFields(t *testing.T) {
	for name, tc := range map[string]struct{ body, a, bc string }{
		"both":             {`{"a":"1","b":{"c":"2"}}`, "1", "2"},
		"spaces":           {" {\n\t\"a\" : \"1\" ,\r\n \"b\" : { \"c\" : \"2\" } }\n", "1", "2"},
		"among others":     {`{"x":[{"a":"no"},"]"],"y":{"c":"no"},"a":"1","z":-1.5e3 ,"b":{"a":"no","n":null,"c":"2"},"t":true}`, "1", "2"},
		"quotes":           {`{"x":"\"a\":\\","y\"":"}","a":"\u0031\\\"","b":{"c":"\\"}}`, "1\\\"", `\`},
		"the last counts":  {`{"a":"1","a":"2"}`, "2", ""},
		"null":             {`{"a":null,"b":null}`, "", ""},
		"neither":          {`{}`, "", ""},
		"not in the case":  {`{"A":"1","B":{"C":"2"}}`, "", ""},
		"no object inside": {`{"b":"c","a":"1"}`, "1", ""},
	} {
		var a, bc string
		err := new(reader).decodeFields([]byte(tc.body), map[string]any{"a": &a, "b.c": &bc})
		if err != nil || a != tc.a || bc != tc.bc {
			t.Errorf("%s: %q, %q, %v", name, a, bc, err)
		}
	}
	for _, body := range []string{``, `7`, `[]`, `"a"`, `{`, `{"a":}`, `{"a":7}`, `{"b":{"c":{}}}`, `{"x":1 2}`, `{"x":"`, `{} {}`} {
		var a, bc string
		if err := new(reader).decodeFields([]byte(body), map[string]any{"a": &a, "b.c": &bc}); err == nil {
			t.Errorf("%s was decoded", body)
		}
	}
}

// FuzzDecodeFields compares decodeFields with encoding/json.
func FuzzDecodeFields(f *testing.F) {
	for _, body := range []string{`{"a":"1","b":{"a":"2"}}`, ` { "x" : [ 1 , {"a":2} ] , "a" : {"\"":"}"} }`, `{"a":1,"a":true}`, `[{"a":1}]`, `{"":{},"a":"\\"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got json.RawMessage
		fieldsErr := new(reader).decodeFields(body, map[string]any{"a": &got, "b.c": new(any)})
		var want map[string]json.RawMessage
		err := json.Unmarshal(body, &want)
		if (err == nil) != (fieldsErr == nil) {
			t.Fatalf("%q: %v, encoding/json: %v", body, fieldsErr, err)
		}
		if err == nil && !bytes.ContainsRune(body, '\\') && !bytes.Equal(got, want["a"]) {
			t.Errorf("%q: %q, encoding/json: %q", body, got, want["a"])
		}
	})
}
