{{/* The Pod template of a process. Takes {root, values, component}. */}}
{{- define "lockstep.pod" -}}
{{- $v := .values -}}
{{- $worker := eq .component "worker" -}}
{{- $receiver := eq .component "receiver" -}}
{{- $secrets := include "lockstep.sources" . -}}
{{- include "lockstep.checkTermination" . -}}
metadata:
  labels:
    {{- include "lockstep.selector" . | nindent 4 }}
    {{- with $v.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ include "lockstep.settings" .root | sha256sum }} # a change of settings restarts the Pods
    {{- with $v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "lockstep.podSettings" . | nindent 2 }}
  containers:
    - name: lockstep
      {{- include "lockstep.container" . | nindent 6 }}
      args: [serve, --config, /etc/lockstep/lockstep.yaml]
      env:
        - {name: LOCKSTEP_ROLES, value: {{ join "," $v.roles | quote }}}
        {{- if $worker }}
        - name: LOCKSTEP_WORKER # in leases, results and logs
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- end }}
        {{- if $receiver }}
        - {name: LOCKSTEP_API_TOKEN_FILE, value: /etc/lockstep-secrets/api-token}
        {{- end }}
        - {name: GOMEMLIMIT, value: {{ $v.goMemLimit | quote }}}
        {{- if $v.credentials }}
        - {name: LOCKSTEP_CREDENTIALS, value: /etc/lockstep-secrets/credentials}
        {{- end }}
        {{- if $v.hooks }}
        - {name: LOCKSTEP_HOOKS, value: /etc/lockstep-secrets/hooks}
        {{- end }}
        {{- with $v.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if $receiver }}
      # Some forges send a webhook only once: wait until no more arrive here.
      lifecycle:
        preStop: {sleep: {seconds: 5}}
      {{- end }}
      volumeMounts:
        - {name: settings, mountPath: /etc/lockstep, readOnly: true}
        {{- if $secrets }}
        - {name: secrets, mountPath: /etc/lockstep-secrets, readOnly: true}
        {{- end }}
        {{- if $worker }}
        - {name: repos, mountPath: {{ .root.Values.settings.root | quote }}}
        {{- end }}
        {{- if $receiver }}
        - {name: spool, mountPath: {{ .root.Values.settings.spool | quote }}}
        {{- end }}
        {{- with $v.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: settings
      configMap: {name: {{ include "lockstep.fullname" .root }}}
    {{- with $secrets }}
    - name: secrets
      projected:
        defaultMode: 288 # 0440
        sources:
          {{- . | nindent 10 }}
    {{- end }}
    {{- if and $worker (eq $v.kind "Deployment") }}
    - name: repos
      persistentVolumeClaim: {claimName: {{ include "lockstep.claim" .root | quote }}}
    {{- end }}
    {{- with $v.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* What the Pods of all processes have in common. */}}
{{- define "lockstep.podSettings" -}}
{{- $v := .values -}}
automountServiceAccountToken: false
enableServiceLinks: false # a Service called lockstep would otherwise set LOCKSTEP_… variables
terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  {{- if has .component (list "worker" "receiver") }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- with $v.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml . | nindent 4 }}
    labelSelector:
      matchLabels:
        {{- include "lockstep.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* What all containers have in common. The probes do not check Redis or the volume, since a restart would not help. */}}
{{- define "lockstep.container" -}}
image: {{ include "lockstep.image" .root | quote }}
{{- with .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
ports:
  - {name: http, containerPort: 8080}
startupProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
resources:
  {{- toYaml .values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* The Secrets that a process mounts, as sources of a projected volume; empty if there are none. */}}
{{- define "lockstep.sources" -}}
{{- if eq .component "receiver" }}
- secret:
    name: {{ include "lockstep.apiSecret" .root | quote }}
    items: [{key: {{ .root.Values.api.key | quote }}, path: api-token}]
{{- end }}
{{- with .root.Values.redis.existingSecret }}
- secret:
    name: {{ . | quote }}
    items: [{key: {{ $.root.Values.redis.key | quote }}, path: redis-password}]
{{- end }}
{{- range $name, $from := .values.credentials }}
- secret:
    name: {{ $from.secret | quote }}
    items:
      {{- range $from.keys }}
      - {key: {{ . | quote }}, path: credentials/{{ $name }}/{{ . }}}
      {{- end }}
{{- end }}
{{- range $name, $from := .values.hooks }}
- secret:
    name: {{ $from.secret | quote }}
    items:
      {{- range $from.keys }}
      - {key: {{ . | quote }}, path: hooks/{{ $name }}/{{ . }}}
      {{- end }}
{{- end }}
{{- end -}}

{{/* The PodDisruptionBudget of a process. Takes {root, values, component}. */}}
{{- define "lockstep.pdb" -}}
{{- if .values.pdb.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "lockstep.fullname" .root }}-{{ .component }}
  labels:
    {{- include "lockstep.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ toJson .values.pdb.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "lockstep.selector" . | nindent 6 }}
{{- end }}
{{- end -}}

{{/* The spec of a claim. Takes {accessModes, storageClassName, size}. */}}
{{- define "lockstep.claimSpec" -}}
{{- with .storageClassName }}
storageClassName: {{ . | quote }}
{{- end }}
accessModes: {{ toJson .accessModes }}
resources:
  requests:
    storage: {{ .size }}
{{- end -}}
