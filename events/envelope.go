package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	specVersion = "1.0"
	contentJSON = "application/json"
	maxDocument = 1 << 20 // bytes
)

// envelope is a CloudEvents 1.0 document in structured JSON mode.
type envelope[T any] struct {
	SpecVersion     string `json:"specversion"`
	ID              string `json:"id"`
	Source          string `json:"source"`
	Type            string `json:"type"`
	Subject         string `json:"subject,omitempty"`
	Time            string `json:"time,omitempty"`
	DataContentType string `json:"datacontenttype,omitempty"`
	Data            T      `json:"data"`
}

type changeData struct {
	Repo       RepoPath   `json:"repo"`
	URL        string     `json:"url,omitempty"`
	To         RepoPath   `json:"to,omitzero"`
	Ref        string     `json:"ref,omitempty"`
	App        string     `json:"app,omitempty"`
	Credential string     `json:"credential,omitempty"`
	Before     string     `json:"before,omitempty"`
	After      string     `json:"after,omitempty"`
	Force      bool       `json:"force,omitempty"`
	Depth      string     `json:"depth,omitempty"`
	OnBusy     BusyPolicy `json:"on_busy,omitempty"`
	Watched    bool       `json:"watched,omitempty"`
	Pin        bool       `json:"pin,omitempty"`
	Foreign    bool       `json:"foreign,omitempty"`
	Submodules Submodules `json:"submodules,omitempty"`
}

type resultData struct {
	Repo       RepoPath `json:"repo"`
	App        string   `json:"app,omitempty"`
	Ref        Ref      `json:"ref"`
	Deliveries []string `json:"deliveries,omitempty"`
	Attempts   int      `json:"attempts,omitempty"`
	TookMS     int64    `json:"took_ms"`
	Fence      uint64   `json:"fence,omitempty"`
	Before     string   `json:"before,omitempty"`
	After      string   `json:"after,omitempty"`
	Path       string   `json:"path,omitempty"`
	Tree       string   `json:"tree,omitempty"`
	Files      []File   `json:"files,omitempty"`
	Full       bool     `json:"full,omitempty"`
	Truncated  bool     `json:"truncated,omitempty"`
	Until      string   `json:"until,omitempty"`
	Class      Class    `json:"class,omitempty"`
	Error      string   `json:"error,omitempty"`
	Retryable  bool     `json:"retryable,omitempty"`
	To         RepoPath `json:"to,omitzero"`
	Due        int      `json:"due,omitempty"`
	LeftOut    int      `json:"left_out,omitempty"`

	Forced       bool          `json:"forced,omitempty"`
	Verification *Verification `json:"verification,omitempty"`

	Missing []MissingSubmodule `json:"missing_submodules,omitempty"`
	Views   *ViewCounts        `json:"views,omitempty"`
	View    string             `json:"view,omitempty"`
	Subtree string             `json:"subtree,omitempty"`
	Commit  string             `json:"commit,omitempty"`
}

// MarshalJSON encodes the change as a CloudEvents document.
func (c Change) MarshalJSON() ([]byte, error) {
	return json.Marshal(envelope[changeData]{
		SpecVersion: specVersion, ID: c.ID, Source: c.Source, Type: string(c.Type),
		Subject: c.Repo.String(), Time: formatTime(c.Time), DataContentType: contentJSON,
		Data: changeData{
			Repo: c.Repo, URL: c.URL, To: c.To, Ref: c.Ref.String(), App: c.App, Credential: c.Credential,
			Before: c.Before, After: c.After, Force: c.Force, Depth: c.Depth.String(), OnBusy: c.OnBusy,
			Watched: c.Watched, Foreign: c.Foreign, Pin: c.Pin, Submodules: c.Submodules,
		},
	})
}

// MarshalJSON encodes the result as a CloudEvents document.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(envelope[resultData]{
		SpecVersion: specVersion, ID: r.ID, Source: r.Source, Type: string(r.Type),
		Subject: r.Repo.String(), Time: formatTime(r.Time), DataContentType: contentJSON,
		Data: resultData{
			Repo: r.Repo, App: r.App, Ref: r.Ref, Deliveries: r.Deliveries, Attempts: r.Attempts,
			TookMS: r.Took.Milliseconds(), Fence: r.Fence, Before: r.Before, After: r.After,
			Path: r.Path, Tree: r.Tree, Files: r.Files, Full: r.Full, Truncated: r.Truncated, Until: r.Until,
			Class: r.Class, Error: r.Error, Retryable: r.Retryable, To: r.To, Due: r.Due, LeftOut: r.LeftOut,
			Forced: r.Forced, Verification: r.Verification, Missing: r.Missing, Views: r.Views, View: r.View,
			Subtree: r.Subtree, Commit: r.Commit,
		},
	})
}

// ParseChange parses a CloudEvents document, or a flat JSON object with the fields repo, url, to, ref, type,
// id, app, credential, before, after, pin, force, depth, submodules and on_busy, all strings, as redis-cli's
// XADD writes them. The flat form may omit id; the caller then uses the ID of the stream entry. Unknown
// fields are ignored. An error has the disposition [Malformed].
func ParseChange(document []byte) (Change, error) {
	if len(document) > maxDocument {
		return Change{}, malformed(fmt.Errorf("longer than %d bytes", maxDocument))
	}
	cloudEvent, err := isCloudEvent(document)
	if err != nil {
		return Change{}, malformed(fmt.Errorf("neither a CloudEvents document nor plain fields: %w", err))
	}
	parse := parsePlain
	if cloudEvent {
		parse = parseCloudEvent
	}
	c, err := parse(document)
	if c.OnBusy == "" {
		c.OnBusy = BusyWait
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return Change{}, malformed(err)
	}
	return c, nil
}

// isCloudEvent reports whether document has a specversion and is therefore not in the flat form.
func isCloudEvent(document []byte) (bool, error) {
	if bytes.HasPrefix(document, []byte(`{"specversion":`)) { // as MarshalJSON writes it; avoids parsing twice
		return true, nil
	}
	var probe struct {
		SpecVersion *string `json:"specversion"`
	}
	err := decode(document, &probe)
	return probe.SpecVersion != nil, err
}

func parseCloudEvent(document []byte) (Change, error) {
	var doc envelope[changeData]
	if err := decode(document, &doc); err != nil {
		return Change{}, err
	}
	if err := doc.check(); err != nil {
		return Change{}, err
	}
	ref, err := ParseRef(doc.Data.Ref)
	if err != nil {
		return Change{}, err
	}
	at, err := parseTime(doc.Time)
	if err != nil {
		return Change{}, err
	}
	d := doc.Data
	depth, err := ParseDepth(d.Depth)
	if err != nil {
		return Change{}, fmt.Errorf("depth: %w", err)
	}
	if d.Submodules, err = ParseSubmodules(string(d.Submodules)); err != nil {
		return Change{}, err
	}
	return Change{
		ID: doc.ID, Type: ChangeType(doc.Type), Source: doc.Source, Time: at,
		Repo: d.Repo, URL: d.URL, To: d.To, Ref: ref, App: d.App, Credential: d.Credential,
		Before: d.Before, After: d.After, Force: d.Force, Depth: depth, OnBusy: d.OnBusy,
		Watched: d.Watched, Foreign: d.Foreign, Pin: d.Pin, Submodules: d.Submodules,
	}, nil
}

func parsePlain(document []byte) (Change, error) {
	var f struct {
		ID         string     `json:"id"`
		Type       string     `json:"type"`
		Repo       string     `json:"repo"`
		URL        string     `json:"url"`
		To         RepoPath   `json:"to"`
		Ref        string     `json:"ref"`
		App        string     `json:"app"`
		Credential string     `json:"credential"`
		Before     string     `json:"before"`
		After      string     `json:"after"`
		Pin        string     `json:"pin"`
		Force      string     `json:"force"`
		Depth      Depth      `json:"depth"`
		OnBusy     BusyPolicy `json:"on_busy"`
		Submodules string     `json:"submodules"`
	}
	if err := decode(document, &f); err != nil {
		return Change{}, err
	}
	c := Change{
		ID: f.ID, Type: plainType(f.Type), Source: "/lockstep/plain", URL: f.URL, To: f.To, App: f.App,
		Credential: f.Credential, Before: f.Before, After: f.After, Depth: f.Depth, OnBusy: f.OnBusy,
	}
	var err error
	if f.Repo != "" {
		c.Repo, err = ParseRepoPath(f.Repo)
	} else if f.URL != "" && c.Type != ChangeMoved { // the url of a move is the new one
		c.Repo, err = RepoPathFromURL(f.URL)
	}
	if err != nil {
		return Change{}, err
	}
	if c.Ref, err = ParseRef(f.Ref); err != nil {
		return Change{}, err
	}
	if c.Force, err = parseBool("force", f.Force); err != nil {
		return Change{}, err
	}
	if c.Pin, err = parseBool("pin", f.Pin); err != nil {
		return Change{}, err
	}
	c.Submodules, err = ParseSubmodules(f.Submodules)
	return c, err
}

func parseBool(field, text string) (bool, error) {
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s %s: want true or false", field, quote(text))
	}
	return b, nil
}

// plainType expands the short type of the flat form, such as "removed", to the full name.
func plainType(s string) ChangeType {
	switch s {
	case "", "pushed":
		return ChangePushed
	case "removed":
		return ChangeRemoved
	case "moved":
		return ChangeMoved
	case "due":
		return ChangeDue
	}
	return ChangeType(s)
}

var resultTypes = []ResultType{ResultSynced, ResultFailed, ResultRemoved, ResultMoved, ResultPolled, ResultView,
	ResultPurged}

// ParseResult parses a CloudEvents document. It ensures that all paths are relative, use slashes and do not
// escape their root. It returns the same kinds of error as [ParseChange].
func ParseResult(document []byte) (Result, error) {
	r, err := parseResult(document)
	if err != nil {
		return Result{}, Errorf(Malformed, ClassConfig, "malformed result: %w", err)
	}
	return r, nil
}

func parseResult(document []byte) (Result, error) {
	var doc envelope[resultData]
	if err := decode(document, &doc); err != nil {
		return Result{}, err
	}
	if err := doc.check(); err != nil {
		return Result{}, err
	}
	if !slices.Contains(resultTypes, ResultType(doc.Type)) {
		return Result{}, fmt.Errorf("type %s is unknown", quote(doc.Type))
	}
	at, err := parseTime(doc.Time)
	if err != nil {
		return Result{}, err
	}
	d := doc.Data
	if err := d.check(); err != nil {
		return Result{}, err
	}
	return Result{
		ID: doc.ID, Type: ResultType(doc.Type), Source: doc.Source, Time: at,
		Repo: d.Repo, App: d.App, Ref: d.Ref, Deliveries: d.Deliveries, Attempts: d.Attempts,
		Took: time.Duration(d.TookMS) * time.Millisecond, Fence: d.Fence, Before: d.Before, After: d.After,
		Path: d.Path, Tree: d.Tree, Files: d.Files, Full: d.Full, Truncated: d.Truncated, Until: d.Until,
		Class: d.Class, Error: d.Error, Retryable: d.Retryable, To: d.To, Due: d.Due, LeftOut: d.LeftOut,
		Forced: d.Forced, Verification: d.Verification, Missing: d.Missing, Views: d.Views, View: d.View,
		Subtree: d.Subtree, Commit: d.Commit,
	}, nil
}

func (d resultData) check() error {
	switch {
	case d.Repo.IsZero():
		return errors.New("repo is missing")
	case d.TookMS < 0 || d.TookMS > math.MaxInt64/int64(time.Millisecond):
		return errors.New("took_ms is out of range")
	case d.Path != "" && !fs.ValidPath(d.Path), d.Tree != "" && !fs.ValidPath(d.Tree):
		return errors.New("path or tree is not a path below the root")
	}
	for _, f := range d.Files {
		if !fs.ValidPath(f.Path) {
			return errors.New("a file's path does not lie below the tree")
		}
	}
	return nil
}

func (e envelope[T]) check() error {
	switch {
	case e.SpecVersion != specVersion:
		return fmt.Errorf("specversion %s: want %s", quote(e.SpecVersion), specVersion)
	case e.ID == "":
		return errors.New("id is missing")
	case e.Type == "":
		return errors.New("type is missing")
	}
	if e.DataContentType == "" || e.DataContentType == contentJSON {
		return nil
	}
	// A media type may have parameters, usually "; charset=utf-8".
	if media, _, _ := mime.ParseMediaType(e.DataContentType); media != contentJSON {
		return fmt.Errorf("datacontenttype %s: want %s", quote(e.DataContentType), contentJSON)
	}
	return nil
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("time %s is not RFC 3339", quote(s))
	}
	return t.UTC(), checkTime(t)
}

// checkTime returns an error for a time that RFC 3339 cannot represent in UTC.
func checkTime(t time.Time) error {
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return errors.New("time is not in the years 1 to 9999")
	}
	return nil
}

// decode is [json.Unmarshal] with errors that do not repeat the document.
func decode(document []byte, into any) error {
	err := json.Unmarshal(document, into)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		kind, _, _ := strings.Cut(e.Value, " ") // "number 1234…" becomes "number"
		return fmt.Errorf("field %q cannot be a JSON %s", e.Field, kind)
	}
	return err
}
