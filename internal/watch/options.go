package watch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"lockstep/events"
)

// Option is what a watch asks of one extension: a struct whose JSON and YAML fields are fields of the watch. Values are
// immutable, so watches share them.
type Option interface {
	// Extension returns the extension's name, also for the zero value.
	Extension() string
	// Check validates the option in a watch whose other fields are valid. It returns the option in its normal form, or nil
	// if it has no effect.
	Check(w Watch) (Option, error)
}

// Options holds the options of extensions in a watch, by the extension's name: only those that have an effect.
type Options map[string]Option

// With returns the options of a watch that asks these of extensions.
func With(options ...Option) Options {
	all := make(Options, len(options))
	for _, one := range options {
		all[one.Extension()] = one
	}
	return all
}

// OptionOf returns the option of type O of a watch, zero if it has none.
func OptionOf[O Option](w Watch) (option O) {
	option, _ = w.Options[option.Extension()].(O)
	return option
}

// Extension declares what watches may ask of an extension. The names of fields and flags must be unique.
type Extension struct {
	Option Option // any value of its type
	Flags  []Flag
	// Together checks all watches of a repository; optional.
	Together func(repo events.RepoPath, watches []Watch) error
}

// Flag is a flag of lockstep watch add and lockstep watch set that sets a field of an option.
type Flag struct {
	Name, Field string
	Default     any // a string, a bool, or a []string for a flag that is repeatable
	Usage       string
	Parse       func(value any) (any, error) // returns the field's value; optional
}

// The registered extensions, by name so that documents do not depend on the order of imports.
var (
	extensions []Extension
	owners     = map[string]Extension{} // by field

	coreFields = func() map[string]bool {
		names := map[string]bool{}
		for _, name := range fieldsOf(reflect.TypeFor[Watch]()) {
			names[name] = true
		}
		return names
	}()
)

// Register declares an extension. It must be called from an init function.
func Register(e Extension) {
	at, _ := slices.BinarySearchFunc(extensions, e.name(), func(e Extension, name string) int {
		return cmp.Compare(e.name(), name)
	})
	extensions = slices.Insert(extensions, at, e)
	for _, name := range fieldsOf(reflect.TypeOf(e.Option)) {
		if owners[name].Option != nil || coreFields[name] {
			panic(fmt.Sprintf("watch: field %q of extension %s is not unique", name, e.name()))
		}
		owners[name] = e
	}
}

// fieldsOf returns the JSON names of the fields of a struct.
func fieldsOf(document reflect.Type) (names []string) {
	for _, field := range reflect.VisibleFields(document) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
		}
	}
	return names
}

func (e Extension) name() string { return e.Option.Extension() }

// decode returns the option that fill decodes.
func (e Extension) decode(fill func(into any) error) (Option, error) {
	into := reflect.New(reflect.TypeOf(e.Option))
	err := fill(into.Interface())
	return into.Elem().Interface().(Option), err
}

// Flags returns the flags of all extensions.
func Flags() (flags []Flag) {
	for _, e := range extensions {
		flags = append(flags, e.Flags...)
	}
	return flags
}

// Set sets the field of a watch to the flag's value, whose type is that of the default.
func (f Flag) Set(w *Watch, value any) (err error) {
	if f.Parse != nil {
		if value, err = f.Parse(value); err != nil {
			return err
		}
	}
	owner := owners[f.Field]
	before, err := json.Marshal(w.Options[owner.name()]) // null without one
	if err != nil {
		return err
	}
	field, err := json.Marshal(map[string]any{f.Field: value})
	if err != nil {
		return err
	}
	option, err := owner.decode(func(into any) error {
		if err := json.Unmarshal(before, into); err != nil {
			return err
		}
		return json.Unmarshal(field, into)
	})
	if err != nil {
		return err
	}
	w.Options = maps.Clone(w.Options)
	w.setOption(option)
	return nil
}

func (w *Watch) setOption(option Option) {
	if w.Options == nil {
		w.Options = Options{}
	}
	w.Options[option.Extension()] = option
}

// checkOptions validates the options of a watch and normalizes them.
func (w *Watch) checkOptions() error {
	if len(w.Options) == 0 {
		w.Options = nil
		return nil
	}
	given := w.Options
	w.Options = nil
	for _, name := range slices.Sorted(maps.Keys(given)) {
		option, err := given[name].Check(*w)
		if err != nil {
			return err
		}
		if option != nil {
			w.setOption(option)
		}
	}
	return nil
}

// core is a watch without its options.
type core Watch

// MarshalJSON encodes the watch as one object: its own fields, then those of its options.
func (w Watch) MarshalJSON() ([]byte, error) {
	document, err := json.Marshal(core(w))
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(w.Options)) {
		option, err := json.Marshal(w.Options[name])
		if err != nil {
			return nil, err
		}
		if fields := bytes.TrimPrefix(option, []byte("{")); len(fields) > 1 {
			document = append(append(document[:len(document)-1], ','), fields...)
		}
	}
	return document, nil
}

// UnmarshalJSON decodes what MarshalJSON encodes. An unknown field is an error: it may be a rule that is not to be ignored.
func (w *Watch) UnmarshalJSON(document []byte) error {
	*w = Watch{}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.DisallowUnknownFields()
	if decoder.Decode((*core)(w)) == nil { // it has no options
		return nil
	}
	if err := json.Unmarshal(document, (*core)(w)); err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(document, &fields); err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(fields))
	for _, name := range names {
		if !coreFields[strings.ToLower(name)] && owners[name].Option == nil {
			return fmt.Errorf("json: unknown field %q", name)
		}
	}
	return w.decodeOptions(names, func(into any) error { return json.Unmarshal(document, into) })
}

// decodeOptions decodes the options that have these fields. fill decodes the document of the watch.
func (w *Watch) decodeOptions(fields []string, fill func(into any) error) error {
	for _, field := range fields {
		owner := owners[field]
		if owner.Option == nil || w.Options[owner.name()] != nil {
			continue
		}
		option, err := owner.decode(fill)
		if err != nil {
			return err
		}
		w.setOption(option)
	}
	return nil
}
