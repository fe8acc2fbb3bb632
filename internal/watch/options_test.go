package watch_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/ext/signatures"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/ext/views"
	"lockstep/internal/watch"
)

const optionsDocument = `{"app":"docs","repo":"acme/widgets","url":"https://example.com/acme/widgets.git","depth":"full",` +
	`"lfs":"fetch","lfs_include":["*.bin"],"no_rewind":true,"submodules":"required","views":{"a":["b"]},"view_trees":true}`

func TestOptionsAreFieldsOfTheDocument(t *testing.T) {
	var w watch.Watch
	if err := json.Unmarshal([]byte(optionsDocument), &w); err != nil {
		t.Fatal(err)
	}
	if lfs.Of(w).Mode != lfs.Fetch || !signatures.Of(w).NoRewind || submodules.Of(w).Mode != events.SubmodulesRequired ||
		!views.Of(w).Trees || !views.Of(w).Views.Has("a") {
		t.Errorf("%+v", w.Options)
	}
	w, err := watch.New(w)
	if text, jsonErr := json.Marshal(w); err != nil || jsonErr != nil || string(text) != optionsDocument {
		t.Errorf("%s, %v, %v", text, err, jsonErr)
	}
}

func TestOptionsWithoutEffectAreDropped(t *testing.T) {
	var w watch.Watch
	const text = `{"app":"docs","url":"https://example.com/acme/widgets.git","lfs":"pointers","verify":"off","submodules":"off","views":{},"view_trees":false}`
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	if w, err := watch.New(w); err != nil || w.Options != nil || !reflect.DeepEqual(w, of(t, "docs", "acme/widgets", "")) {
		t.Errorf("%+v, %v", w, err)
	}
}

// A rule that this version does not know is not ignored.
func TestUnknownFieldsAreErrors(t *testing.T) {
	for name, document := range map[string]string{
		"alone":        `{"app":"docs","aprove":"two"}`,
		"with options": `{"app":"docs","no_rewind":true,"aprove":"two"}`,
		"core":         `{"app":"docs","options":{}}`,
	} {
		err := json.Unmarshal([]byte(document), new(watch.Watch))
		if err == nil || !strings.Contains(err.Error(), "unknown field") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"App":"docs","no_rewind":true}`), new(watch.Watch)); err != nil {
		t.Errorf("another case: %v", err)
	}
}

func TestFlagsSetFields(t *testing.T) {
	original := of(t, "docs", "acme/widgets", "")
	original.Options = watch.With(lfs.Options{Mode: lfs.Fetch, Include: []string{"a"}})
	w := original
	for _, flag := range watch.Flags() {
		value := map[string]any{"lfs-include": []string{"b", "c"}, "view": []string{"x=a", "x=b", "y=c"}, "no-rewind": true,
			"verify": "report"}[flag.Name]
		if value == nil {
			continue
		}
		if err := flag.Set(&w, value); err != nil {
			t.Errorf("%s: %v", flag.Name, err)
		}
		if err := flag.Set(&w, flag.Default); flag.Name == "verify" && err != nil {
			t.Error(err)
		} else if flag.Name != "verify" {
			if err := flag.Set(&w, value); err != nil {
				t.Error(err)
			}
		}
	}
	if got := lfs.Of(w); got.Mode != lfs.Fetch || len(got.Include) != 2 || views.Of(w).Views.Len() != 2 || signatures.Of(w) != (signatures.Options{NoRewind: true}) {
		t.Errorf("%+v", w.Options)
	}
	if len(lfs.Of(original).Include) != 1 || len(original.Options) != 1 {
		t.Errorf("the original watch was changed: %+v", original.Options)
	}
}
