package unknown_test

import (
	"encoding/json"
	"testing"

	"lockstep/internal/unknown"
)

type person struct {
	Name string `json:"name"`
	Age  int    `json:"age,omitempty"`
}

func TestUnknownFieldsArePreserved(t *testing.T) {
	for name, tc := range map[string]struct{ old, want string }{
		"none":           {`{"name":"a","age":1}`, `{"name":"b"}`},
		"one field":      {`{"name":"a","mood":{"is":["good"]}}`, `{"mood":{"is":["good"]},"name":"b"}`},
		"different case": {`{"Name":"a","AGE":3}`, `{"name":"b"}`},
	} {
		t.Run(name, func(t *testing.T) {
			others, err := unknown.Fields([]byte(tc.old), person{})
			if err != nil {
				t.Fatal(err)
			}
			document, err := json.Marshal(person{Name: "b"})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := unknown.AddTo(document, others); err != nil || string(got) != tc.want {
				t.Errorf("%s, %v; want %s", got, err, tc.want)
			}
		})
	}
	if _, err := unknown.Fields([]byte(`[1]`), person{}); err == nil {
		t.Error("no error for a JSON array")
	}
}
