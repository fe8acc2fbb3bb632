// Package unknown keeps the fields of a JSON document that this version does not know. Processes of different
// versions owe each other that much where they write the same documents: whoever writes one anew leaves in it
// what a newer one has put there. See docs/adr/0010-versions.md.
package unknown

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
)

// Fields returns the fields of a document, a JSON object, that known, a struct, has no place for; nil when
// there are none.
func Fields(document []byte, known any) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(document, &fields); err != nil {
		return nil, err
	}
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool { return has(known, name) })
	if len(fields) == 0 {
		return nil, nil
	}
	return fields, nil
}

// has reports whether json.Unmarshal would read the field into the struct, for which case does not matter.
func has(known any, name string) bool {
	t := reflect.TypeOf(known)
	for i := range t.NumField() {
		if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); strings.EqualFold(tag, name) {
			return true
		}
	}
	return false
}

// AddTo adds to a document the unknown fields of the one that it replaces.
func AddTo(document []byte, others map[string]json.RawMessage) ([]byte, error) {
	if len(others) == 0 {
		return document, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(document, &fields); err != nil {
		return nil, fmt.Errorf("add what another version has written: %w", err)
	}
	maps.Copy(fields, others)
	return json.Marshal(fields)
}
