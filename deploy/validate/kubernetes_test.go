package validate

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const manifests = "../kubernetes"

// object is one that kustomize made.
type object map[string]any

func (o object) kind() string { return fmt.Sprint(o["kind"]) }

func (o object) name() string { return fmt.Sprint(at(o, "metadata", "name")) }

func (o object) String() string { return o.kind() + "/" + o.name() }

// at is what is found down a path of keys, nil when there is nothing.
func at(node any, keys ...string) any {
	for _, key := range keys {
		switch n := node.(type) {
		case object:
			node = n[key]
		case map[string]any:
			node = n[key]
		default:
			return nil
		}
	}
	return node
}

// each are the maps of a list.
func each(node any) []map[string]any {
	list, _ := node.([]any)
	var all []map[string]any
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

func labels(node any) map[string]any {
	m, _ := node.(map[string]any)
	return m
}

// matches reports whether a selector's labels are all among others.
func matches(selector, labels map[string]any) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// build has kustomize make the objects of a folder. It reads a copy in memory, in which the files are that a user makes.
func build(t *testing.T, folder string) []object {
	t.Helper()
	memory := filesys.MakeFsInMemory()
	err := filepath.WalkDir(manifests, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(manifests, path)
		if err != nil {
			return err
		}
		return memory.WriteFile(filepath.Join("/", relative), content)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := memory.WriteFile("/overlays/trial/api-token", []byte("a token")); err != nil {
		t.Fatal(err)
	}
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(memory, filepath.Join("/", folder))
	if err != nil {
		t.Fatal(err)
	}
	var objects []object
	for _, resource := range result.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, read(t, text))
	}
	return objects
}

func read(t *testing.T, text []byte) object {
	t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestKubernetesTakesTheManifests(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for folder, least := range map[string]int{"base": 12, "overlays/trial": 15, "overlays/example": 15} {
		t.Run(folder, func(t *testing.T) {
			objects := build(t, folder)
			if len(objects) < least {
				t.Errorf("%d objects, want %d or more", len(objects), least)
			}
			for _, o := range objects {
				if err := all.check(o); err != nil {
					t.Errorf("%s: %v", o, err)
				}
			}
			if folder != "base" { // which lacks the Secret that it wants
				for _, problem := range dangling(objects, made(t, folder)) {
					t.Error(problem)
				}
			}
			for _, problem := range restricted(objects) {
				t.Error(problem)
			}
		})
	}
}

// made are the Secrets that an overlay has made elsewhere, as secrets.yaml shows them.
func made(t *testing.T, folder string) []object {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(manifests, folder, "secrets.yaml"))
	if err != nil {
		return nil
	}
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	var secrets []object
	for _, document := range strings.Split(string(content), "\n---\n") {
		o := read(t, []byte(document))
		if err := all.check(o); err != nil {
			t.Errorf("%s: %v", o, err)
		}
		o["data"] = o["stringData"]
		secrets = append(secrets, o)
	}
	return secrets
}

// podOf is the template of an object that makes Pods, nil for others.
func podOf(o object) map[string]any {
	template, _ := at(o, "spec", "template").(map[string]any)
	return template
}

// dangling says what names something that is not there: an API server takes all of it, and nothing comes of it.
func dangling(objects, elsewhere []object) (problems []string) {
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	named, pods := map[string]object{}, map[string]map[string]any{}
	for _, o := range append(slices.Clone(objects), elsewhere...) {
		named[o.String()] = o
		if pod := podOf(o); pod != nil {
			pods[o.String()] = pod
		}
	}
	selects := func(who object, selector map[string]any) []map[string]any {
		var selected []map[string]any
		for _, pod := range pods {
			if matches(selector, labels(at(pod, "metadata", "labels"))) {
				selected = append(selected, pod)
			}
		}
		if len(selected) == 0 {
			report("%s selects no Pod: %v", who, selector)
		}
		return selected
	}
	for _, o := range objects {
		switch o.kind() {
		case "Deployment", "StatefulSet":
			pod := podOf(o)
			if !matches(labels(at(o, "spec", "selector", "matchLabels")), labels(at(pod, "metadata", "labels"))) {
				report("%s does not select its own Pods", o)
			}
			for _, constraint := range each(at(pod, "spec", "topologySpreadConstraints")) {
				if !matches(labels(at(constraint, "labelSelector", "matchLabels")), labels(at(pod, "metadata", "labels"))) {
					report("%s spreads other Pods than its own", o)
				}
			}
			if service := at(o, "spec", "serviceName"); o.kind() == "StatefulSet" && named[fmt.Sprintf("Service/%s", service)] == nil {
				report("%s: there is no Service %s", o, service)
			}
			problems = append(problems, danglingPod(o, pod, named)...)
		case "Service":
			for _, pod := range selects(o, labels(at(o, "spec", "selector"))) {
				for _, port := range each(at(o, "spec", "ports")) {
					if !slices.Contains(portsOf(pod), fmt.Sprint(port["targetPort"])) {
						report("%s: its Pods have no port %s", o, port["targetPort"])
					}
				}
			}
		case "PodDisruptionBudget":
			selects(o, labels(at(o, "spec", "selector", "matchLabels")))
		case "NetworkPolicy":
			for _, pod := range selects(o, labels(at(o, "spec", "podSelector", "matchLabels"))) {
				for _, rule := range each(at(o, "spec", "ingress")) {
					for _, port := range each(rule["ports"]) {
						if !slices.Contains(portsOf(pod), fmt.Sprint(port["port"])) {
							report("%s lets through to port %s, which its Pods do not have", o, port["port"])
						}
					}
				}
			}
		case "PodMonitor":
			for _, pod := range selects(o, labels(at(o, "spec", "selector", "matchLabels"))) {
				for _, endpoint := range each(at(o, "spec", "podMetricsEndpoints")) {
					if !slices.Contains(portsOf(pod), fmt.Sprint(endpoint["port"])) {
						report("%s: there is no port %s", o, endpoint["port"])
					}
				}
			}
		case "Ingress":
			for _, rule := range each(at(o, "spec", "rules")) {
				for _, path := range each(at(rule, "http", "paths")) {
					service := named[fmt.Sprintf("Service/%s", at(path, "backend", "service", "name"))]
					if service == nil {
						report("%s leads to no Service", o)
					}
					ports := each(at(service, "spec", "ports"))
					if !slices.ContainsFunc(ports, func(p map[string]any) bool { return p["name"] == at(path, "backend", "service", "port", "name") }) {
						report("%s leads to no port of its Service", o)
					}
				}
			}
		}
	}
	return problems
}

// danglingPod says what a Pod's volumes, mounts and probes name that is not there.
func danglingPod(o object, pod map[string]any, named map[string]object) (problems []string) {
	report := func(format string, args ...any) {
		problems = append(problems, o.String()+": "+fmt.Sprintf(format, args...))
	}
	volumes := map[string]bool{}
	secret := func(source any) {
		s := named[fmt.Sprintf("Secret/%s", at(source, "name"))]
		if s == nil {
			report("there is no Secret %s", at(source, "name"))
		}
		for _, item := range each(at(source, "items")) {
			if _, ok := labels(at(s, "data"))[fmt.Sprint(item["key"])]; !ok {
				report("%s has no key %s", s, item["key"])
			}
		}
	}
	for _, volume := range each(at(pod, "spec", "volumes")) {
		volumes[fmt.Sprint(volume["name"])] = true
		if settings := at(volume, "configMap", "name"); settings != nil && named[fmt.Sprintf("ConfigMap/%s", settings)] == nil {
			report("there is no ConfigMap %s", settings)
		}
		if claim := at(volume, "persistentVolumeClaim", "claimName"); claim != nil && named[fmt.Sprintf("PersistentVolumeClaim/%s", claim)] == nil {
			report("there is no claim %s", claim)
		}
		for _, source := range each(at(volume, "projected", "sources")) {
			secret(source["secret"])
		}
	}
	for _, claim := range each(at(o, "spec", "volumeClaimTemplates")) {
		volumes[fmt.Sprint(at(claim, "metadata", "name"))] = true
	}
	for _, container := range each(at(pod, "spec", "containers")) {
		mounted := map[string]bool{}
		for _, mount := range each(container["volumeMounts"]) {
			mounted[fmt.Sprint(mount["name"])] = true
			if !volumes[fmt.Sprint(mount["name"])] {
				report("there is no volume %s", mount["name"])
			}
		}
		for _, name := range slices.Sorted(maps.Keys(volumes)) {
			if !mounted[name] {
				report("volume %s is not mounted", name)
			}
		}
		for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
			if container[probe] == nil {
				report("no %s", probe)
			}
			for _, by := range []string{"httpGet", "tcpSocket"} {
				if port := at(container, probe, by, "port"); port != nil && !slices.Contains(portsOf(pod), fmt.Sprint(port)) {
					report("%s asks port %s, which is not there", probe, port)
				}
			}
		}
	}
	return problems
}

// portsOf are the names and numbers of a Pod's ports.
func portsOf(pod map[string]any) []string {
	var ports []string
	for _, container := range each(at(pod, "spec", "containers")) {
		for _, port := range each(container["ports"]) {
			ports = append(ports, fmt.Sprint(port["name"]), fmt.Sprint(port["containerPort"]))
		}
	}
	return ports
}

// restricted says what the Pod security standard "restricted" would refuse, and what is wanted beyond it.
func restricted(objects []object) (problems []string) {
	for _, o := range objects {
		pod := podOf(o)
		if pod == nil {
			continue
		}
		want := func(where any, value any, keys ...string) {
			if got := at(where, keys...); fmt.Sprint(got) != fmt.Sprint(value) {
				problems = append(problems, fmt.Sprintf("%s: %s is %v, want %v", o, strings.Join(keys, "."), got, value))
			}
		}
		want(pod, true, "spec", "securityContext", "runAsNonRoot")
		want(pod, "RuntimeDefault", "spec", "securityContext", "seccompProfile", "type")
		want(pod, false, "spec", "automountServiceAccountToken")
		want(pod, false, "spec", "enableServiceLinks")
		for _, container := range each(at(pod, "spec", "containers")) {
			want(container, false, "securityContext", "allowPrivilegeEscalation")
			want(container, true, "securityContext", "readOnlyRootFilesystem")
			want(container, []any{"ALL"}, "securityContext", "capabilities", "drop")
			for _, amount := range [][]string{{"resources", "requests", "cpu"}, {"resources", "requests", "memory"}, {"resources", "limits", "memory"}} {
				if at(container, amount...) == nil {
					problems = append(problems, fmt.Sprintf("%s: %s is not said", o, strings.Join(amount, ".")))
				}
			}
			if image := fmt.Sprint(container["image"]); strings.HasSuffix(image, ":latest") {
				problems = append(problems, fmt.Sprintf("%s: image %s", o, image))
			}
		}
		for _, key := range []string{"hostNetwork", "hostPID", "hostIPC"} {
			if at(pod, "spec", key) != nil {
				problems = append(problems, fmt.Sprintf("%s: %s", o, key))
			}
		}
	}
	return problems
}

func TestWhatDanglesIsSeen(t *testing.T) {
	objects := build(t, "overlays/example")
	secrets := made(t, "overlays/example")
	for _, o := range objects {
		switch o.String() {
		case "Deployment/lockstep-worker":
			container := each(at(o, "spec", "template", "spec", "containers"))[0]
			each(container["volumeMounts"])[0]["name"] = "elsewhere"
			at(container, "readinessProbe", "httpGet").(map[string]any)["port"] = "https"
			container["securityContext"].(map[string]any)["readOnlyRootFilesystem"] = false
		case "Service/lockstep":
			at(o, "spec", "selector").(map[string]any)["app.kubernetes.io/component"] = "receivers"
		}
	}
	problems := append(dangling(objects, secrets[1:]), restricted(objects)...) // without the API token
	for _, want := range []string{
		"there is no volume elsewhere", "readinessProbe asks port https", "Service/lockstep selects no Pod", "there is no Secret lockstep-api", "readOnlyRootFilesystem is false",
	} {
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, want) }) {
			t.Errorf("nobody says that %s: %q", want, problems)
		}
	}
}
