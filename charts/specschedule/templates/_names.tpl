{{- define "specschedule.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters, so that every suffix used in this chart stays within 63. */}}
{{- define "specschedule.fullname" -}}
{{- $name := include "specschedule.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "specschedule.selector" -}}
app.kubernetes.io/name: {{ include "specschedule.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "specschedule.labels" -}}
{{ include "specschedule.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "specschedule.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "specschedule.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "specschedule.priorityClass" -}}
{{- if .Values.priorityClass.create -}}
{{- default (printf "%s-trial" (include "specschedule.fullname" .)) .Values.priorityClass.name }}
{{- else -}}
{{- .Values.priorityClass.name }}
{{- end }}
{{- end }}

{{- define "specschedule.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
