// Package unknown preserves the fields of a JSON document that this version does not know. When processes of different
// versions write the same documents, an older process that rewrites a document must keep the fields added by a newer
// one. See docs/adr/0010-versions.md.
package unknown

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
)

// Fields returns the fields of a JSON object that are not fields of the struct known, or nil if there are none.
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

// has reports whether json.Unmarshal would decode the field, ignoring case, into the struct.
func has(known any, name string) bool {
	t := reflect.TypeOf(known)
	for i := range t.NumField() {
		if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); strings.EqualFold(tag, name) {
			return true
		}
	}
	return false
}

// AddTo adds the unknown fields of the document's former version to the document.
func AddTo(document []byte, unknown map[string]json.RawMessage) ([]byte, error) {
	if len(unknown) == 0 {
		return document, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(document, &fields); err != nil {
		return nil, fmt.Errorf("add fields of another version: %w", err)
	}
	maps.Copy(fields, unknown)
	return json.Marshal(fields)
}
